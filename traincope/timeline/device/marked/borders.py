"""Borders of steps on a GPU: of marked steps by their marks, of others by how far the GPU was behind its host."""

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import AFTER_ALL_NS, Bools, Ints
from traincope.timeline.timeline import RankTimeline


def borders(rank: RankTimeline, numbers: Ints, bordered: Bools, marked: NDArray[np.void]) -> tuple[Ints, Ints]:
    """Begins and ends of the steps on the device.

    A step without marks is moved by how far the device was behind the host at the nearest marks, so that the
    steps still join.
    """
    order = np.argsort(marked["step"], kind="stable")
    at = order[np.searchsorted(marked["step"], numbers[bordered], sorter=order)]
    host = host_borders(rank)
    known = host[bordered].reshape(-1)
    behind = np.stack([marked["start_ns"][at], marked["end_ns"][at]], axis=1).reshape(-1) - known
    if not len(known):
        return host[:, 0], host[:, 1]
    device = host + interpolated(host, known, behind)
    device[bordered] = host[bordered] + behind.reshape(-1, 2)
    starts = np.maximum.accumulate(device[:, 0])
    following = np.append(starts[1:], AFTER_ALL_NS)[: len(starts)]
    joined = bordered & np.append(bordered[1:] & (np.diff(numbers) == 1), False)[: len(starts)]
    ends = np.where(joined, following, np.clip(device[:, 1], starts, following))
    return starts, ends


def interpolated(at_ns: Ints, known_ns: Ints, values_ns: Ints) -> Ints:
    """Interpolate between known values. Differences are exact as floats; times since the epoch are not."""
    since = known_ns[0]
    result: Ints = np.rint(np.interp(at_ns - since, known_ns - since, values_ns)).astype(np.int64)
    return result


def host_borders(rank: RankTimeline) -> Ints:
    return np.array([(step.start_ns, step.end_ns) for step in rank.steps], dtype=np.int64).reshape(-1, 2)
