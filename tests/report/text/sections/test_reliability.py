"""The section RELIABILITY, as a console of 100 columns prints it."""

import io
from dataclasses import replace

from rich.console import Console

from tests.report.example import analysis
from traincope.analysis.reliability.badput import Badput, CauseCount
from traincope.analysis.reliability.cadence import Cadence, Saves
from traincope.analysis.reliability.interruptions import Interruption
from traincope.analysis.reliability.mtbf import Mtbf
from traincope.analysis.reliability.reliability import Reliability
from traincope.analysis.reliability.rolling import Rolling
from traincope.lines import Trimmed
from traincope.report.document.document import to_document
from traincope.report.sections.reliability import reliability
from traincope.report.sections.source import Source
from traincope.report.text.section import on_console

S = 1_000_000_000
HOUR_NS = 3600 * S


def interruption(cause: str, **more: int | None) -> Interruption:
    times = {"detect_ns": None, "restart_ns": None, "lost_steps": None, "lost_ns": None} | more
    return Interruption(attempt="0", cause=cause, what="", at_ns=0, **times)  # type: ignore[arg-type]


RECORDED = Reliability(
    elapsed_ns=100 * HOUR_NS,
    running_ns=90 * HOUR_NS,
    productive_ratio=0.8,
    reason=None,
    interruptions=(
        interruption("killed", detect_ns=S, restart_ns=HOUR_NS, lost_ns=2 * HOUR_NS),
        interruption("killed", detect_ns=3 * S, restart_ns=2 * HOUR_NS, lost_ns=HOUR_NS),
        interruption("out_of_memory", restart_ns=3 * HOUR_NS),
    ),
    causes=(CauseCount(cause="killed", count=2, ratio=2 / 3), CauseCount(cause="out_of_memory", count=1, ratio=1 / 3)),
    badput=(
        Badput(part="restart", cause="killed", ns=3 * HOUR_NS),
        Badput(part="restart", cause="out_of_memory", ns=3 * HOUR_NS),
        Badput(part="lost", cause="killed", ns=3 * HOUR_NS, unknown=1),
        Badput(part="lost", cause="out_of_memory", ns=None, unknown=1),
    ),
    mtbf=Mtbf(ns=30 * HOUR_NS, low_ns=10 * HOUR_NS, high_ns=145 * HOUR_NS, running=True),
    rolling=(Rolling(window_ns=24 * HOUR_NS, ends_ns=(0, HOUR_NS), ratios=(0.25, 0.75)),),
    saves=Saves(count=9, stall_ns=30.0 * S, longest_ns=40 * S, background_ns=None, interval_ns=3600.0 * S),
    cadence=Cadence(
        interval_ns=3600.0 * S,
        best_ns=2520.0 * S,
        best_low_ns=1440.0 * S,
        best_high_ns=5580.0 * S,
        lost_ratio=0.031,
        best_lost_ratio=0.029,
        certain=False,
    ),
)


def shown(job: Reliability) -> str:
    console, result = Console(file=io.StringIO(), width=100), replace(analysis(), reliability=job)
    source = Source(analysis=result, document=to_document(result))
    with console.capture() as captured:
        for part in on_console(reliability(source), source.document):
            console.print(Trimmed(part), end="")
    return captured.get()


def test_a_recorded_job() -> None:
    assert (
        shown(RECORDED)
        == """\
RELIABILITY  3 interruptions in 100 h 0 min; mean time between them 30 h 0 min (95 % interval 10 h 0
min to 145 h 0 min)
    cause          count   share    restart          lost steps
    killed             2  66.7 %  3 h 0 min  at least 3 h 0 min
    out of memory      1  33.3 %  3 h 0 min             unknown
    attempts ran in 90.0 % of the time
    goodput 80.0 %
    on average, as far as known: noticed after 2.00 s, restarted after 2 h 0 min
    rolling 24 h: 75.0 % productive at the end, lowest 25.0 %
    checkpoints: 9, each costs 30.0 s, one after each 1 h 0 min
    Daly's interval: 42 min 0 s (24 min 0 s to 1 h 33 min); expected loss 3.1 % of the time as
    recorded, 2.9 % there
"""
    )


def test_a_job_without_an_interruption_has_a_bound() -> None:
    between = Mtbf(ns=None, low_ns=30 * HOUR_NS, high_ns=None, running=True)
    quiet = replace(
        RECORDED, interruptions=(), causes=(), badput=(), mtbf=between, rolling=(), saves=None, cadence=None
    )
    assert (
        shown(quiet)
        == """\
RELIABILITY  0 interruptions in 100 h 0 min; the mean time between them is over 30 h 0 min with 95 %
confidence
    attempts ran in 90.0 % of the time
    goodput 80.0 %
"""
    )
