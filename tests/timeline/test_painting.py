"""Who owns each instant, and how intervals nest, on paper."""

import numpy as np

from traincope.timeline.painting import NOBODY, nesting, painted


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_the_interval_begun_last_owns_what_it_covers() -> None:
    #   0         10
    #   |----0----|
    #     2   6
    #     |-1-|
    found = painted(ints(0, 2), ints(10, 6))
    assert found.start_ns.tolist() == [0, 2, 6]
    assert found.end_ns.tolist() == [2, 6, 10]
    assert found.owner.tolist() == [0, 1, 0]


def test_gaps_belong_to_nobody_and_an_interval_without_length_owns_nothing() -> None:
    found = painted(ints(0, 3, 5), ints(2, 3, 9))
    assert list(zip(found.start_ns.tolist(), found.end_ns.tolist(), found.owner.tolist(), strict=True)) == [
        (0, 2, 0),
        (5, 9, 2),
    ]


def test_nested_intervals_lie_below_what_holds_them() -> None:
    #   0: [0, 10)  1: [1, 5)  2: [2, 3)  3: [6, 8)  4: [12, 13)
    found = nesting(ints(0, 1, 2, 6, 12), ints(10, 5, 3, 8, 13))
    assert found.depth.tolist() == [0, 1, 2, 1, 0]
    assert found.parent.tolist() == [NOBODY, 0, 1, 0, NOBODY]


def test_intervals_that_only_overlap_lie_on_lines_of_their_own_and_hold_nobody() -> None:
    #   0: [0, 5)  1: [3, 8)  2: [4, 5)  3: [5, 9): line 0 is free again
    found = nesting(ints(0, 3, 4, 5), ints(5, 8, 5, 9))
    assert found.depth.tolist() == [0, 1, 2, 0]
    assert found.parent.tolist() == [NOBODY, NOBODY, 0, NOBODY]


def test_no_two_intervals_of_a_line_overlap_whatever_they_are() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        starts = np.sort(random.integers(0, 60, size=25))
        ends = starts + random.integers(0, 20, size=25)
        order = np.lexsort((-ends, starts))
        starts, ends = starts[order], ends[order]
        found = nesting(starts, ends)
        for line in range(int(found.depth.max()) + 1):
            own = np.flatnonzero(found.depth == line)
            assert (ends[own[:-1]] <= starts[own[1:]]).all()
        held = found.parent >= 0
        assert (ends[found.parent[held]] >= ends[held]).all()
