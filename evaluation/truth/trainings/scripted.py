"""Random workloads, unlike any training: random work between collectives that all ranks begin in one order."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from evaluation.truth.trainings.workloads import MS, Begin, Finish, Move, Work, Workload

OWN = ("forward", "backward", "data_wait", "unattributed")
ALL_TOGETHER = ("tp", "dp")
"""Synchronising collectives at the end of a step, so that the next step is like it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted(Workload):
    """A workload of 4 ranks, dp x tp. Times are whole ms, and never 0."""

    seed: int
    parallel: str = "dp x tp"
    ranks: int = 4
    work_halved: str = ""
    """A term that takes half as long."""
    axis_halved: str = ""
    """An axis whose wires take half as long."""

    def script(self, rank: int) -> tuple[Move, ...]:
        return tuple(self._moves(rank))

    def _moves(self, rank: int) -> Iterator[Move]:
        plan, rank_random = Random(self.seed), Random(f"{self.seed} {rank}")
        open_: list[Begin] = []
        for number in range(plan.randint(1, 6)):
            yield from self._works(rank_random)
            begun = self._begin(plan.choice(self.axes), f"all_reduce {number}", rank, link_ms=plan.randint(1, 40))
            yield begun
            open_.append(begun)
            if rank_random.random() < 0.5:
                yield from self._works(rank_random)
            while open_ and rank_random.random() < 0.7:
                yield _finish(open_.pop(0))
        yield from map(_finish, open_)
        for axis in ALL_TOGETHER:
            begun = self._begin(axis, "all_reduce last", rank, link_ms=5)
            yield from (begun, _finish(begun))

    def _works(self, rank_random: Random) -> Iterator[Work]:
        for _ in range(rank_random.randint(1, 3)):
            term, ns = rank_random.choice(OWN), rank_random.randint(1, 60) * MS
            yield Work(term, ns // 2 if term == self.work_halved else ns)

    def _begin(self, axis: str, name: str, rank: int, *, link_ms: int) -> Begin:
        link_ns = link_ms * MS // (2 if axis == self.axis_halved else 1)
        return Begin(axis, name, self.members(axis, rank), link_ns)


def _finish(begun: Begin) -> Finish:
    return Finish(begun.axis, begun.name)
