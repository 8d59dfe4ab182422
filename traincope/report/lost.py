"""What the recorders of a run counted as lost beside records: how much, in words, and why."""

from collections.abc import Iterable, Mapping

from traincope.store import RankRecords

LOSSES = {
    "lost_lines": ("names and details", "could not be written; was the disk full?"),
    "names_refused": ("names", "found no room in 8 MiB; names that hold numbers or ids belong into details"),
    "values_left_out": (
        "values of run.log()",
        "had not come from the GPU when the run ended, or were too many at once",
    ),
    "details_refused": ("details of events", "found no room; record fewer or smaller ones"),
    "stalls_unmeasured": (
        "stalls of the compute stream",
        "were too many at once, or not over on the GPU when the run ended: they count as computing",
    ),
    "collectives_forgotten": (
        "collectives in flight",
        "were too many at once: what waited for them later is not known as communication",
    ),
}
"""Counter of a rank's recorder -> what was lost, and why."""


def lost(ranks: Iterable[RankRecords]) -> dict[str, int | None]:
    """Sum of each counter over the ranks that tell it, as they do at a clean end; None where none does."""
    told = [rank.info.recorder for rank in ranks]
    return {counter: _sum(told, counter) for counter in LOSSES}


def _sum(told: list[dict[str, int]], counter: str) -> int | None:
    counts = [recorder[counter] for recorder in told if counter in recorder]
    return sum(counts) if counts else None


def in_words(lost: Mapping[str, int | None]) -> str:
    """`1,200 names, 3 details of events`; empty where nothing was lost."""
    return ", ".join(f"{lost[counter]:,} {what}" for counter, (what, _) in LOSSES.items() if lost.get(counter))
