"""What steps went over, where the training logs it: `run.log(step_tokens=..., step_squared_lengths=...)`.

A rank logs its own share of one step, so that the ranks' add up. FLOPs are linear in them (`plan.rates`): those of
weights in the tokens, those of attention in the squared lengths of the documents, which without a
word of them are taken to be as long in every step.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from traincope.events import Kind
from traincope.timeline import RankTimeline, Timeline

TOKENS, SQUARED_LENGTHS = "tokens", "squared_lengths"
LOGGED = "step_{}"
"""How an amount is called in the log: what is called `tokens` there is often the sum since the beginning."""
MOST = 1e50
"""No amount reaches it, and beyond it products of what was told are no numbers any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """By what steps are larger, in the mean, than those whose FLOPs were counted."""

    tokens: float = 1.0
    squared_lengths: float = 1.0


def growth(timeline: Timeline, *, steps: Collection[int]) -> Growth:
    """Of `steps`, whose time is measured."""
    tokens = _growth(timeline, TOKENS, steps)
    squares = _growth(timeline, SQUARED_LENGTHS, steps)
    return Growth(tokens=tokens or 1.0, squared_lengths=squares or tokens or 1.0)


def counted_steps(rank: RankTimeline) -> set[int]:
    """Those whose FLOPs were counted."""
    return set(rank.of_kind(Kind.FLOPS)["step"].tolist())


def whole_job(timeline: Timeline) -> float:
    """Ranks of the job over those that are seen here: one node's agent sees its own, which do what all do."""
    return timeline.run.info.world_size / max(len(timeline.ranks), 1)


def mean_amount(timeline: Timeline, name: str, *, steps: Collection[int]) -> float | None:
    """Of a step, over all ranks of the job; None where it was not logged."""
    seen = _mean(_by_step(timeline, name), steps)
    return None if seen is None else seen * whole_job(timeline)


def _growth(timeline: Timeline, name: str, steps: Collection[int]) -> float | None:
    logged = _by_step(timeline, name)
    counted = {step for rank in timeline.ranks for step in counted_steps(rank)}
    usual, then = _mean(logged, steps), _mean(logged, counted)
    return usual / then if usual and then else None


def _mean(logged: Mapping[int, float], steps: Collection[int]) -> float | None:
    there = [logged[step] for step in steps if step in logged]
    return sum(there) / len(there) if there else None


def _by_step(timeline: Timeline, name: str) -> dict[int, float]:
    sums: dict[int, float] = defaultdict(float)
    for rank in timeline.ranks:
        for step, value in _logged(rank, LOGGED.format(name)):
            sums[step] += value
    return sums


def _logged(rank: RankTimeline, name: str) -> list[tuple[int, float]]:
    records = rank.of_kind(Kind.SCALAR)
    numbers = [number for number in np.unique(records["name"]).tolist() if rank.name(number) == name]
    chosen = records[np.isin(records["name"], numbers)]
    values = np.ascontiguousarray(chosen["value"]).view(np.float64)
    pairs = zip(chosen["step"].tolist(), values.tolist(), strict=True)
    return [(step, value) for step, value in pairs if abs(value) < MOST]
