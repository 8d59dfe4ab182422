"""Exact rasterisation of spans: each bin holds the time that spans cover, however short they are."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Floats, Ints


def covered_ns(
    starts: Ints,
    ends: Ints,
    channel: NDArray[np.integer],
    *,
    num_channels: int,
    begin_ns: int,
    width_ns: int,
    bins: int,
) -> Floats:
    """Array (channel, bin): ns of each bin that the intervals [start, end) cover. Bin k begins at `begin_ns` + k x
    `width_ns`.

        Overlapping intervals of one channel count each. Time before the first bin and after the last is left out. Exact
        for sums of whole ns below 2^53.
    """
    until = bins * width_ns
    starts, ends = np.clip(starts - begin_ns, 0, until), np.clip(ends - begin_ns, 0, until)
    inside = np.flatnonzero(ends > starts)
    starts, ends, row = starts[inside], ends[inside], channel[inside].astype(np.int64) * bins
    first, last = starts // width_ns, (ends - 1) // width_ns
    # An interval covers its first and last bin in part, and the bins between them fully.
    wide = np.flatnonzero(last > first)
    parts = np.minimum((first + 1) * width_ns, ends) - starts, ends[wide] - last[wide] * width_ns
    sums = _summed([row + first, (row + last)[wide]], parts, size=num_channels * bins)
    wide = wide[last[wide] > first[wide] + 1]
    if len(wide):
        ones, borders = np.ones(len(wide)), [(row + first)[wide] + 1, (row + last)[wide]]
        sums += np.cumsum(_summed(borders, (ones, -ones), size=num_channels * bins)) * width_ns
    return sums.reshape(num_channels, bins)


def _summed(places: Sequence[Ints], values: Sequence[NDArray[np.number]], *, size: int) -> Floats:
    weights = np.concatenate(values).astype(np.float64)
    return np.asarray(np.bincount(np.concatenate(places), weights=weights, minlength=size), dtype=np.float64)
