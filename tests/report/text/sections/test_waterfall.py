"""Notes below the waterfall that say which clock measured it."""

from tests.report import example
from traincope.report import schema
from traincope.report.text.sections.waterfall import notes


def lines(ledger: schema.Ledger) -> list[str]:
    return [note.plain for note in notes(ledger)]


def test_marks_on_the_gpus_streams_say_what_the_terms_contain() -> None:
    ledger = example.document()["ledger"]
    assert ledger is not None
    ledger["clock"], ledger["run_ahead"] = "device", {"median_ns": 12_000, "empty_ratio": 0.83}
    assert (
        "measured by marks on the GPUs' streams, so idle time within a phase is part of the phase; the hosts run "
        "12.0 us ahead (median); after phases with 83.0 % of step time the GPUs had nothing to do"
    ) in lines(ledger)
    assert any(
        line.startswith("not measured, so part of a phase, launch_gap or unattributed: ") for line in lines(ledger)
    )


def test_a_ledger_on_the_hosts_clock_says_why_the_gpus_did_not_measure_it() -> None:
    ledger = example.document()["ledger"]
    assert ledger is not None
    ledger["device_stalls"], ledger["host_clock_reason"] = [], "rank 1 has no marks on a compute stream"
    assert (
        "the terms are measured on the host, which queues work ahead of its GPUs, because rank 1 has no marks on a "
        "compute stream; no stall of the GPUs' compute streams for communication was recorded"
    ) in lines(ledger)
