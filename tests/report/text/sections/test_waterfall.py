"""Notes below the waterfall that say which clock measured it."""

from dataclasses import replace

from tests.report.example import analysis, document
from traincope.analysis import Analysis
from traincope.analysis.ledger.run_ahead import RunAhead
from traincope.report.text.sections.waterfall import notes


def lines(result: Analysis) -> list[str]:
    ledger = document()["ledger"]
    assert ledger is not None
    return [note.plain for note in notes(ledger, result)]


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
