"""Medians in whole ns, with halves rounded to even."""

import numpy as np

from traincope.timeline.intervals.medians import halfway, medians


def test_the_mean_of_two_rounds_halves_to_even() -> None:
    assert halfway(np.array([1, 2, 4]), np.array([2, 3, 8])).tolist() == [2, 2, 6]


def test_each_group_has_the_median_of_its_values() -> None:
    """Group 3 has 1, 5 and 9; group 7 has 10 and 20."""
    groups, middle = medians(np.array([7, 3, 3, 7, 3]), np.array([20, 9, 1, 10, 5]))
    assert (groups.tolist(), middle.tolist()) == ([3, 7], [5, 15])
