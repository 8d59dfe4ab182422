"""Unions of intervals, compared with sets of ns."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traincope.timeline.intervals.union import Union

INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))), max_size=8
)


def union(intervals: list[tuple[int, int]]) -> Union:
    starts, ends = np.array(intervals, dtype=np.int64).reshape(-1, 2).T
    return Union.of(starts, ends)


def instants(intervals: list[tuple[int, int]]) -> set[int]:
    return {at for start, end in intervals for at in range(start, end)}


def test_intervals_that_overlap_or_touch_become_one() -> None:
    result = union([(5, 9), (0, 2), (2, 3), (6, 7), (11, 12)])
    assert list(zip(result.starts_ns.tolist(), result.ends_ns.tolist(), strict=True)) == [(0, 3), (5, 9), (11, 12)]
    assert result.length_ns == 8


@given(INTERVALS)
def test_the_length_is_that_of_the_set(intervals: list[tuple[int, int]]) -> None:
    assert union(intervals).length_ns == len(instants(intervals))


@given(INTERVALS, INTERVALS)
def test_the_covered_length_is_the_intersection(
    intervals: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    starts, ends = np.array(others, dtype=np.int64).reshape(-1, 2).T
    inside = [len(instants(intervals) & instants([other])) for other in others]
    assert union(intervals).covered_ns(starts, ends).tolist() == inside
