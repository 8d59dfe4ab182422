"""Scalars of the latest steps, for trackers such as TensorBoard, Weights & Biases and MLflow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traincope.analysis import Analysis, RankLedger
from traincope.analysis.attribution.terms import BUBBLE
from traincope.timeline import RankTimeline

PREFIX = "traincope"
"""Trackers group names by the part before `/`."""
EXPOSED = ("exposed_transfer[", "exposed_wait[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalars:
    """Numbers of some consecutive steps."""

    step: int
    """Number of the last step."""
    values: Mapping[str, float]
    """Name -> mean over the steps: shares from 0 to 1, and the step time in seconds. Unknown ones are left out."""


def scalars(analysis: Analysis) -> Scalars | None:
    """Scalars of the steps that the ledger counts, over the ranks of the analysis; None if it counts none."""
    ledger, ratios = analysis.ledger, analysis.utilization.ratios
    measured = {rank.rank: rank for rank in analysis.context.measured.ranks}
    numbers = [number for rank in ledger.ranks for number in rank.numbers[rank.timed].tolist()]
    wall_ns = sum(int(rank.wall_ns[rank.timed].sum()) for rank in ledger.ranks)
    if not wall_ns:
        return None
    own_ns = sum(_own_ns(rank, measured[rank.rank]) for rank in ledger.ranks)
    known = {
        "mfu": ratios.mfu,
        "hfu": ratios.hfu,
        "exposed_communication": _total(ledger.share(term) for term in ledger.order if term.startswith(EXPOSED)),
        "bubble": _total(ledger.share(term) for term in ledger.order if term in BUBBLE),
        "overhead": own_ns / wall_ns,
        "step_seconds": wall_ns / len(numbers) / 1e9,
    }
    values = {f"{PREFIX}/{name}": value for name, value in known.items() if value is not None}
    return Scalars(step=max(numbers), values=values)


def _own_ns(ledger: RankLedger, timeline: RankTimeline) -> int:
    """CPU time of the recorder in the steps whose length enters the scalars."""
    return sum(step.own_ns for step, is_timed in zip(timeline.steps, ledger.timed, strict=True) if is_timed)


def _total(shares: Iterable[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) if known else None
