"""Spans on a grid, true to area: each bin holds exactly how long it was covered, however short the spans."""

from collections.abc import Sequence

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
    until = bins * width_ns
    starts, ends = np.clip(starts - begin_ns, 0, until), np.clip(ends - begin_ns, 0, until)
    kept = np.flatnonzero(ends > starts)
    starts, ends, row = starts[kept], ends[kept], channel[kept].astype(np.int64) * bins
    first, last = starts // width_ns, (ends - 1) // width_ns
    # Its first and its last bin an interval covers in part; all of those between, counted up from where they begin.
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
