"""Spans on a grid, true to area: each bin holds exactly how long it was covered, however short the spans."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def covered(
    starts: Ints,
    ends: Ints,
    channel: NDArray[np.integer],
    *,
    num_channels: int,
    begin_ns: int,
    width_ns: int,
    bins: int,
) -> Floats:
    """Array (channel, bin) of ns that intervals [start, end) cover of each bin, those of `begin_ns` + k x `width_ns`.

    Intervals of one channel that overlap count each. What lies before the first bin or after the last
    is left out. Exact: sums of whole ns below 2^53.
    """
    size = num_channels * (bins + 1)
    until = bins * width_ns
    starts, ends = np.clip(starts - begin_ns, 0, until), np.clip(ends - begin_ns, 0, until)
    kept = np.flatnonzero(ends > starts)
    starts, ends, row = starts[kept], ends[kept], channel[kept].astype(np.int64) * (bins + 1)
    first, last = starts // width_ns, (ends - 1) // width_ns
    # From its first bin on an interval covers all, less what lies before its start; from the bin after its
    # last on nothing; and of its last bin not what lies after its end.
    steps = np.bincount(row + first, minlength=size) - np.bincount(row + last + 1, minlength=size)
    sums = np.cumsum(steps.reshape(num_channels, bins + 1), axis=1)[:, :bins] * float(width_ns)
    cut = np.bincount(row + first, weights=starts - first * width_ns, minlength=size)
    cut += np.bincount(row + last, weights=(last + 1) * width_ns - ends, minlength=size)
    return np.asarray(sums - cut.reshape(num_channels, bins + 1)[:, :bins])
