"""Which steps are sent as spans: a trace is read by people, and a collector has its limits."""

from math import ceil

import numpy as np

from traincope.analysis import Analysis

MOST_SPANS = 200_000
"""Of a run's trace, roughly, over all ranks."""
MOST_STEPS = 64
MOST_SPANS_OF_A_LOOK = 5_000
"""Some 0.1 s of CPU."""
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


def newest_step(analysis: Analysis) -> frozenset[int]:
    """Of a look at a running job: the last of its new steps that the node's ranks have all finished; none of many
    records, for a job is watched at little cost.
    """
    done = [set(rank.numbers[rank.counted].tolist()) for rank in analysis.ledger.ranks]
    common = set.intersection(*done) if done else set()
    if not common:
        return frozenset()
    newest = max(common)
    threads = [records for rank in analysis.timeline.ranks for records in rank.threads.values()]
    num_records = sum(int(np.count_nonzero(records["step"] == newest)) for records in threads)
    return frozenset({newest} if num_records <= MOST_SPANS_OF_A_LOOK else ())


def _slowest(analysis: Analysis) -> set[int]:
    """Of the counted steps; the first of a run is slow for reasons of its own."""
    slowest: tuple[int, int] | None = None
    for rank in analysis.ledger.ranks:
        if rank.num_counted:
            at = int(np.argmax(np.where(rank.counted, rank.wall_ns, -1)))
            slowest = max(slowest or (0, 0), (int(rank.wall_ns[at]), int(rank.numbers[at])))
    return set() if slowest is None else {slowest[1]}
