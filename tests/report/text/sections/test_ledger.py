"""The ledger's section: which clock measured it, and its rows of bars."""

from dataclasses import replace

from tests.report.example import MS, analysis
from traincope.analysis import Analysis, DeviceStall
from traincope.analysis.ledger.run_ahead import RunAhead
from traincope.report.document.document import to_document
from traincope.report.sections.ledger import bars, ledger
from traincope.report.sections.source import Source
from traincope.report.sections.values import plain, sentences


def lines(result: Analysis) -> list[str]:
    document = to_document(result)
    return sentences(document, ledger(Source(analysis=result, document=document)))


def test_marks_on_the_gpus_streams_say_what_the_terms_contain() -> None:
    shown = lines(replace(analysis(), run_ahead=RunAhead(median_ns=12_000, empty_ratio=0.83, fed=False)))
    assert (
        "measured by marks on the GPUs' streams, so idle time within a phase is part of the phase; the hosts run "
        "12.0 us ahead (median); after phases with 83.0 % of step time the GPUs had nothing to do"
    ) in shown
    assert any(line.startswith("not measured, so part of a phase, launch_gap or unattributed: ") for line in shown)


def test_a_ledger_on_the_hosts_clock_says_why_the_gpus_did_not_measure_it() -> None:
    assert (
        "the terms are measured on the host, which queues work ahead of its GPUs, because rank 1 has no marks on a "
        "compute stream; no stall of the GPUs' compute streams for communication was recorded"
    ) in lines(replace(analysis(), device_stalls=(), why_on_host="rank 1 has no marks on a compute stream"))


def test_stalls_of_the_gpus_are_means_per_step_and_shares() -> None:
    """6 steps of single ranks."""
    stalls = (
        DeviceStall(axis="fsdp", count=4, total_ns=12 * MS, ratio=0.04),
        DeviceStall(axis="tp", count=2, total_ns=3_000, ratio=0.01),
    )
    (line,) = (line for line in lines(replace(analysis(), device_stalls=stalls)) if line.startswith("the terms"))
    assert line.endswith("stalled for communication, per step: fsdp 2.00 ms (4.0 %), tp 500 ns (1.0 %)")


def test_joined_terms_are_summed_in_one_row_after_the_others() -> None:
    document = to_document(analysis())
    assert document["ledger"] is not None
    shown = bars(document["ledger"], joined=("optimizer", "exposed_transfer[pp]", "exposed_wait[fsdp]"))
    rows = [[plain(document, cell) for cell in row] for row in (*shown.rows, shown.whole)]
    assert rows == [
        ["forward", "27.5 %", "27.50 ms"],
        ["backward", "40.0 %", "40.00 ms"],
        ["bubble.schedule", "20.0 %", "20.00 ms"],
        ["bubble.imbalance", "4.0 %", "4.00 ms"],
        ["bubble.jitter", "-1.0 %", "-1.00 ms"],
        ["unattributed", "2.0 %", "2.00 ms"],
        ["other terms", "7.5 %", "7.50 ms"],
        ["step", "100.0 %", "100.00 ms"],
    ]
