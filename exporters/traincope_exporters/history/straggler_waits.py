"""Series of straggler waits: the report's total per rank, spread over the run.

Wait chains need sums over many steps, so the report's total is the value. It is spread over windows of steps in
proportion to the straggler wait within each window.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from traincope.analysis.attribution.stalls import StallTotal, sum_stalls
from traincope.analysis.stragglers.stragglers import rank_waits
from traincope.arrays import Ints
from traincope.metrics.metric import RANK_LABELS, Metric
from traincope.metrics.values import sum_by_step
from traincope_exporters.history.finished_run import NS, FinishedRun
from traincope_exporters.history.series import Series, counter

MAX_WINDOWS = 32
"""Maximum number of windows. Each is analyzed on every rank."""


def straggler_wait(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    total = {rank.rank: rank.straggler_wait_ns for rank in run.analysis.stragglers.ranks}
    windows = _windows(run)
    ends = np.array([end_ns for end_ns, _ in windows], dtype=np.int64)
    caused = [
        _caused(run, stalls_by_rank) for stalls_by_rank in _stalls_by_window(run, [steps for _, steps in windows])
    ]
    for labels, (rank,) in run.groups(RANK_LABELS):
        shares = np.array([waits.get(rank.number, 0) for waits in caused], dtype=np.int64)
        added = _spread(total.get(rank.number, 0), shares)
        yield counter(metric, labels, ends, added, begin_ns=run.begin_ns, unit=NS)


def _windows(run: FinishedRun) -> list[tuple[int, Ints]]:
    """End and step numbers of each window. All have about the same number of steps."""
    numbers = np.unique(np.concatenate([rank.numbers[rank.ledger.counted] for rank in run.ranks]))
    ends, _ = sum_by_step(list(run.ranks))
    at = np.array_split(np.arange(len(numbers)), min(MAX_WINDOWS, max(len(numbers), 1)))
    return [(int(ends[window].max()), numbers[window]) for window in at if len(window)]


def _stalls_by_window(run: FinishedRun, windows: list[Ints]) -> list[dict[int, tuple[StallTotal, ...]]]:
    """For each window, the stalls of each rank's training thread."""
    result: list[dict[int, tuple[StallTotal, ...]]] = [{} for _ in windows]
    context = run.analysis.context
    for rank in run.ranks:
        pieces, split = context.slices(rank.timeline)
        for lost, steps in zip(result, windows, strict=True):
            lost[rank.number] = sum_stalls(pieces, split, counted=np.isin(rank.numbers, steps), last=context.last)
    return result


def _caused(run: FinishedRun, stalls_by_rank: Mapping[int, tuple[StallTotal, ...]]) -> dict[int, int]:
    waits = rank_waits(run.analysis.timeline, run.analysis.ledger, stalls_by_rank)
    return {rank.rank: rank.straggler_wait_ns for rank in waits}


def _spread(total: int, shares: Ints) -> Ints:
    """Spread `total` in proportion to `shares`, in whole ns that sum to it; all at the end if all shares are 0."""
    if not shares.any():
        added = np.zeros_like(shares)
        added[-1:] = total
        return added
    reached = np.array([total * share // int(shares.sum()) for share in np.cumsum(shares).tolist()], dtype=np.int64)
    return np.diff(reached, prepend=0)
