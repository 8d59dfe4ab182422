"""Numbering of distinct integers, dense or sparse."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traincope.timeline.intervals.numbering import Numbering

near, far = st.integers(0, 50), st.integers(-(2**60), 2**60)


@given(values=st.lists(near | far, max_size=20), asked=st.lists(near | far, max_size=20))
def test_the_number_is_the_position_among_the_distinct_values(values: list[int], asked: list[int]) -> None:
    distinct = sorted(set(values))
    numbering = Numbering.of(np.array(values, dtype=np.int64))
    assert numbering.values.tolist() == distinct
    result = numbering.number(np.array(values + asked, dtype=np.int64)).tolist()
    assert result == [distinct.index(value) if value in distinct else -1 for value in values + asked]


def test_dense_values_use_a_table_and_sparse_ones_a_search() -> None:
    assert Numbering.of(np.arange(5, 90)).table is not None
    assert Numbering.of(np.array([0, 2**40])).table is None
