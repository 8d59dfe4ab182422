"""Which steps are sent as spans: a trace is read by people, and a collector has its limits."""

from math import ceil

import numpy as np

from traincope.analysis import Analysis

MOST_SPANS = 200_000
"""Of a run's trace, roughly, over all ranks."""
MOST_STEPS = 64
FEWEST_STEPS = 4
"""However many records a step has."""


def sampled_steps(analysis: Analysis) -> frozenset[int]:
    """The first, the last, the slowest, those with faults, and every k-th, as many as `MOST_SPANS` allow."""
    timeline = analysis.timeline
    numbers = sorted({step.number for rank in timeline.ranks for step in rank.steps})
    if not numbers:
        return frozenset()
    records = sum(len(thread) for rank in timeline.ranks for thread in rank.threads.values())
    wanted = min(max(MOST_SPANS * len(numbers) // max(records, 1), FEWEST_STEPS), MOST_STEPS)
    every = ceil(len(numbers) / wanted)
    faulty = {fault.step for fault in analysis.faults if fault.is_fault and fault.step is not None}
    extra = {numbers[-1], *_slowest(analysis), *sorted(faulty & set(numbers))[:wanted]}
    return frozenset({*numbers[::every], *extra})


def _slowest(analysis: Analysis) -> set[int]:
    """Of the counted steps; the first of a run is slow for reasons of its own."""
    slowest: tuple[int, int] | None = None
    for rank in analysis.ledger.ranks:
        if rank.num_counted:
            at = int(np.argmax(np.where(rank.counted, rank.wall_ns, -1)))
            slowest = max(slowest or (0, 0), (int(rank.wall_ns[at]), int(rank.numbers[at])))
    return set() if slowest is None else {slowest[1]}
