"""Selection of the steps that are sent as spans. People read traces, and collectors have limits."""

from math import ceil

import numpy as np

from traincope.analysis import Analysis

MAX_SPANS = 200_000
"""Approximate limit of a run's trace over all ranks."""
MAX_STEPS = 64
MAX_LIVE_SPANS = 5_000
"""Limit of one look. They take about 0.1 s of CPU."""
MIN_STEPS = 4
"""Minimum number of steps, however many events they have."""


def sampled_steps(analysis: Analysis) -> frozenset[int]:
    """First, last and slowest step, steps with faults, and every k-th, within `MAX_SPANS`."""
    timeline = analysis.timeline
    numbers = sorted({step.number for rank in timeline.ranks for step in rank.steps})
    if not numbers:
        return frozenset()
    records = sum(len(thread) for rank in timeline.ranks for thread in rank.threads.values())
    num_sampled = min(max(MAX_SPANS * len(numbers) // max(records, 1), MIN_STEPS), MAX_STEPS)
    every = ceil(len(numbers) / num_sampled)
    faulty = {fault.step for fault in analysis.faults_of_attempt if fault.is_fault and fault.step is not None}
    extra = {numbers[-1], *_slowest(analysis), *sorted(faulty & set(numbers))[:num_sampled]}
    return frozenset({*numbers[::every], *extra})


def newest_step(analysis: Analysis) -> frozenset[int]:
    """Newest step that all ranks of the node finished; empty if it has more than `MAX_LIVE_SPANS` events."""
    done = [set(rank.numbers[rank.counted].tolist()) for rank in analysis.ledger.ranks]
    common = set.intersection(*done) if done else set()
    if not common:
        return frozenset()
    newest = max(common)
    threads = [records for rank in analysis.timeline.ranks for records in rank.threads.values()]
    num_records = sum(int(np.count_nonzero(records["step"] == newest)) for records in threads)
    return frozenset({newest} if num_records <= MAX_LIVE_SPANS else ())


def _slowest(analysis: Analysis) -> set[int]:
    """Slowest counted step. The warm-up step is not counted."""
    slowest: tuple[int, int] | None = None
    for rank in analysis.ledger.ranks:
        if rank.num_counted:
            at = int(np.argmax(np.where(rank.counted, rank.wall_ns, -1)))
            slowest = max(slowest or (0, 0), (int(rank.wall_ns[at]), int(rank.numbers[at])))
    return set() if slowest is None else {slowest[1]}
