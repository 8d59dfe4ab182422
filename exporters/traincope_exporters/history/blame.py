"""Whom the others waited for, over time: what the report lays at each rank's door, spread over the run.

What is carried from rank to rank is told of sums over many steps, so the report's total is what counts; it is spread
over windows of steps as the waiting within them was.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from traincope.analysis.host import cut
from traincope.analysis.stalls import Standstill, split_stalls, standstills
from traincope.analysis.stragglers import last_to_arrive, stragglers
from traincope.metrics import RANK_LABELS, Metric
from traincope_exporters.history.finished import NS, Finished, by_step
from traincope_exporters.history.series import Ints, Series, counter

MOST_WINDOWS = 32
"""Each is looked through on every rank."""


def caused_wait(run: Finished, metric: Metric) -> Iterator[Series]:
    total = {rank.rank: rank.caused_wait_ns for rank in run.analysis.stragglers.ranks}
    windows = _windows(run)
    ends = np.array([end_ns for end_ns, _ in windows], dtype=np.int64)
    caused = [_caused(run, stood_still) for stood_still in _stood_still(run, [steps for _, steps in windows])]
    for labels, (rank,) in run.groups(RANK_LABELS):
        told = np.array([one.get(rank.number, 0) for one in caused], dtype=np.int64)
        added = _spread(total.get(rank.number, 0), told)
        yield counter(metric, labels, ends, added, begin_ns=run.begin_ns, unit=NS)


def _windows(run: Finished) -> list[tuple[int, Ints]]:
    """When each had ended, and its steps' numbers; of about as many steps each."""
    numbers = np.unique(np.concatenate([rank.numbers[rank.ledger.counted] for rank in run.ranks]))
    ends, _ = by_step(list(run.ranks))
    at = np.array_split(np.arange(len(numbers)), min(MOST_WINDOWS, max(len(numbers), 1)))
    return [(int(ends[own].max()), numbers[own]) for own in at if len(own)]


def _stood_still(run: Finished, windows: list[Ints]) -> list[dict[int, tuple[Standstill, ...]]]:
    """Of each window, what each rank's training thread lost."""
    found: list[dict[int, tuple[Standstill, ...]]] = [{} for _ in windows]
    last = last_to_arrive(run.instances)
    for rank in run.ranks:
        pieces = cut(rank.timeline, window_ends=np.empty(0, dtype=np.int64))
        split = split_stalls(rank.timeline, pieces, instances=run.instances)
        for lost, steps in zip(found, windows, strict=True):
            lost[rank.number] = standstills(pieces, split, counted=np.isin(rank.numbers, steps), last=last)
    return found


def _caused(run: Finished, stood_still: Mapping[int, tuple[Standstill, ...]]) -> dict[int, int]:
    found = stragglers(run.analysis.timeline, run.analysis.ledger, stood_still)
    return {rank.rank: rank.caused_wait_ns for rank in found.ranks}


def _spread(total: int, shares: Ints) -> Ints:
    """In proportion, in whole ns that sum to the total; all at the end where nothing tells."""
    if not shares.any():
        added = np.zeros_like(shares)
        added[-1:] = total
        return added
    reached = np.array([total * share // int(shares.sum()) for share in np.cumsum(shares).tolist()], dtype=np.int64)
    return np.diff(reached, prepend=0)
