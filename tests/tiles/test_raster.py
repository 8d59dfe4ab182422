"""Exact rasters: each bin holds the time that spans cover."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traincope.tiles.raster import covered_ns


def test_short_spans_add_up_and_long_ones_are_cut_at_bins() -> None:
    #  bins of 10 ns from 100 on: [100, 110) [110, 120) [120, 130)
    #  [101, 103) and [105, 106) lie in the first; [108, 125) covers 2, 10 and 5 of the three
    starts, ends = np.array([101, 105, 108]), np.array([103, 106, 125])
    sums = covered_ns(starts, ends, np.zeros(3, dtype=np.int64), num_channels=1, begin_ns=100, width_ns=10, bins=3)
    assert sums.tolist() == [[5.0, 10.0, 5.0]]


def test_time_outside_the_bins_is_left_out_and_channels_are_separate() -> None:
    starts, ends = np.array([0, 95, 128]), np.array([50, 104, 200])
    sums = covered_ns(starts, ends, np.array([0, 1, 0]), num_channels=2, begin_ns=100, width_ns=10, bins=3)
    assert sums.tolist() == [[0.0, 0.0, 2.0], [4.0, 0.0, 0.0]]


@given(
    spans=st.lists(st.tuples(st.integers(-50, 250), st.integers(0, 120), st.integers(0, 2)), max_size=30),
    begin=st.integers(-20, 100),
    width=st.integers(1, 40),
    bins=st.integers(1, 12),
)
def test_every_bin_equals_counting_by_nanoseconds(
    spans: list[tuple[int, int, int]], begin: int, width: int, bins: int
) -> None:
    expected = np.zeros((3, bins))
    for start, length, channel in spans:
        for instant in range(start, start + length):
            if begin <= instant < begin + bins * width:
                expected[channel, (instant - begin) // width] += 1
    starts = np.array([start for start, _, _ in spans], dtype=np.int64)
    ends = starts + np.array([length for _, length, _ in spans], dtype=np.int64)
    channel = np.array([number for _, _, number in spans], dtype=np.int64)
    sums = covered_ns(starts, ends, channel, num_channels=3, begin_ns=begin, width_ns=width, bins=bins)
    assert sums.tolist() == expected.tolist()
