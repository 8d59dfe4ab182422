"""Owners of instants and nesting of intervals, computed by hand."""

import numpy as np

from traincope.timeline.intervals.painting import ABSENT, nesting, painted


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_the_interval_begun_last_owns_what_it_covers() -> None:
    #   0         10
    #   |----0----|
    #     2   6
    #     |-1-|
    result = painted(ints(0, 2), ints(10, 6))
    assert result.start_ns.tolist() == [0, 2, 6]
    assert result.end_ns.tolist() == [2, 6, 10]
    assert result.owner.tolist() == [0, 1, 0]


def test_gaps_have_no_owner_and_intervals_without_length_own_nothing() -> None:
    result = painted(ints(0, 3, 5), ints(2, 3, 9))
    assert list(zip(result.start_ns.tolist(), result.end_ns.tolist(), result.owner.tolist(), strict=True)) == [
        (0, 2, 0),
        (5, 9, 2),
    ]


def test_nested_intervals_lie_below_their_parents() -> None:
    #   0: [0, 10)  1: [1, 5)  2: [2, 3)  3: [6, 8)  4: [12, 13)
    result = nesting(ints(0, 1, 2, 6, 12), ints(10, 5, 3, 8, 13))
    assert result.depth.tolist() == [0, 1, 2, 1, 0]
    assert result.parent.tolist() == [ABSENT, 0, 1, 0, ABSENT]


def test_overlapping_intervals_lie_on_separate_lines_without_a_parent() -> None:
    #   0: [0, 5)  1: [3, 8)  2: [4, 5)  3: [5, 9): line 0 is free again
    result = nesting(ints(0, 3, 4, 5), ints(5, 8, 5, 9))
    assert result.depth.tolist() == [0, 1, 2, 0]
    assert result.parent.tolist() == [ABSENT, ABSENT, 0, ABSENT]


def test_each_interval_is_on_the_first_free_line_within_the_innermost_around_it() -> None:
    """Clusters of one, two and more intervals that overlap, also of no length: line by line, as it is defined."""
    random = np.random.default_rng(1)
    for _ in range(200):
        starts = np.sort(random.integers(0, 120, size=25))
        ends = starts + random.integers(0, random.choice([3, 8, 20]), size=25)
        order = np.lexsort((-ends, starts))
        starts, ends = starts[order], ends[order]
        result = nesting(starts, ends)
        lines: list[tuple[int, int]] = []
        for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            free = [line for line, (until, _) in enumerate(lines) if until <= start]
            line = free[0] if free else len(lines)
            around = [(until, -other) for until, other in lines if start < until >= end]
            assert (result.depth[at], result.parent[at]) == (line, -min(around)[1] if around else ABSENT)
            lines[line : line + 1] = [(max(end, start + 1), at)]


def test_intervals_on_one_line_never_overlap() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        starts = np.sort(random.integers(0, 60, size=25))
        ends = starts + random.integers(0, 20, size=25)
        order = np.lexsort((-ends, starts))
        starts, ends = starts[order], ends[order]
        result = nesting(starts, ends)
        for line in range(int(result.depth.max()) + 1):
            on_line = np.flatnonzero(result.depth == line)
            assert (ends[on_line[:-1]] <= starts[on_line[1:]]).all()
        held = result.parent >= 0
        assert (ends[result.parent[held]] >= ends[held]).all()
