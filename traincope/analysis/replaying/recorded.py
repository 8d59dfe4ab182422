"""Recorded steps as moves: the choice of steps, and the moves of all ranks in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traincope.analysis.attribution.releases import Releases
from traincope.analysis.attribution.stalls import StallSplit
from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.analysis.context import Context
from traincope.analysis.ledger.coverage import consecutive_ranges
from traincope.analysis.replaying.moves import Moves, SharedCollectives, rank_moves, shared_collectives
from traincope.timeline import RankTimeline, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedSteps:
    """Steps of a run, and what each rank did in them."""

    numbers: tuple[int, ...]
    moves: Mapping[int, Moves]
    """Moves of each rank that completed steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMoves:
    """Lists the moves of one rank after the other. All ranks with steps completed the steps."""

    context: Context
    numbers: tuple[int, ...]
    shared: SharedCollectives

    @classmethod
    def of(cls, context: Context, numbers: tuple[int, ...]) -> "StepMoves":
        ranks = [rank for rank in context.measured.ranks if rank.steps]
        shared = shared_collectives(ranks, context.on_streams.instances, consecutive_ranges(numbers))
        return cls(context=context, numbers=numbers, shared=shared)

    def rank_moves(self, rank: RankTimeline, slices: ThreadSlices, split: StallSplit, released: Releases) -> Moves:
        wire = self.context.on_streams.transfers
        return rank_moves(rank, slices, split, released, self.shared, wire=wire)


def last_steps(timeline: Timeline, numbers: Sequence[int], *, max_records: int) -> tuple[int, ...]:
    """Return as many of these steps as have about `max_records` records on all ranks together, the last ones.

    `numbers` ascend. Empty if a single step has more.
    """
    records = sum(len(rank.main) for rank in timeline.ranks)
    steps = max((len(rank.steps) for rank in timeline.ranks), default=0)
    count = min(max_records * steps // max(records, 1), len(numbers))
    return tuple(numbers[len(numbers) - count :])
