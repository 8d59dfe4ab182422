"""Losses that the recorders counted, other than dropped events: amounts, words and reasons."""

from collections.abc import Iterable, Mapping

from traincope.store import RankRecords

LOSSES = {
    "lost_lines": ("names and details", "could not be written; was the disk full?"),
    "names_refused": ("names", "did not fit in 8 MiB; put numbers and ids into details, not into names"),
    "values_left_out": (
        "values of run.log()",
        "had not arrived from the GPU when the run ended, or were too many at once",
    ),
    "details_refused": ("details of events", "did not fit; record fewer or smaller ones"),
    "stalls_unmeasured": (
        "marks on the compute stream",
        "were too many at once, or had not happened when the run ended: their stalls count as computing, and the GPU's "
        "ledger lacks their steps",
    ),
    "collectives_forgotten": (
        "collectives in flight",
        "were too many at once: later waits for them do not count as communication",
    ),
}
"""Counter of a rank's recorder -> (the kind of loss, its reason)."""


def count_losses(ranks: Iterable[RankRecords]) -> dict[str, int | None]:
    """Sum each counter over the ranks that report it, which they do at a clean end; None if no rank reports it."""
    counters = [rank.info.recorder for rank in ranks]
    return {counter: _sum(counters, counter) for counter in LOSSES}


def _sum(counters: list[dict[str, int]], counter: str) -> int | None:
    counts = [recorder[counter] for recorder in counters if counter in recorder]
    return sum(counts) if counts else None


def losses_text(lost: Mapping[str, int | None]) -> str:
    """The losses in words, e.g. "1,200 names, 3 details of events"; empty if nothing was lost."""
    return ", ".join(f"{lost[counter]:,} {what}" for counter, (what, _) in LOSSES.items() if lost.get(counter))
