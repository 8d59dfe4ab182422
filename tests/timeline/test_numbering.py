"""A number for each distinct integer, however far they lie apart."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traincope.timeline.numbering import Numbering

near, far = st.integers(0, 50), st.integers(-(2**60), 2**60)


@given(values=st.lists(near | far, max_size=20), asked=st.lists(near | far, max_size=20))
def test_each_value_has_its_place_among_the_distinct_ones(values: list[int], asked: list[int]) -> None:
    distinct = sorted(set(values))
    numbering = Numbering.of(np.array(values, dtype=np.int64))
    assert numbering.values.tolist() == distinct
    found = numbering.number(np.array(values + asked, dtype=np.int64)).tolist()
    assert found == [distinct.index(value) if value in distinct else -1 for value in values + asked]


def test_counts_that_lie_close_together_are_looked_up_and_others_searched() -> None:
    assert Numbering.of(np.arange(5, 90)).table is not None
    assert Numbering.of(np.array([0, 2**40])).table is None
