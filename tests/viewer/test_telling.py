"""What is said of a collective's parts: nobody is named whom the clocks leave in doubt."""

import pytest

from traincope.viewer.picking import RankPart
from traincope.viewer.telling import who_came_last


def part(rank: int, start_ns: int, bound_ns: int | None) -> RankPart:
    return RankPart(rank=rank, start_ns=start_ns, end_ns=9_000, wait_ns=0, bound_ns=bound_ns)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((0, 0), "rank 7 came last, 2.000 µs"),
        ((400, 599), "rank 7 came last, 2.000 µs"),
        ((400, 600), "nobody knows who came last: their clocks may be 1.00 us apart"),
        ((0, None), "nobody knows who came last: nothing bounds how far their clocks are apart"),
    ],
)
def test_the_last_is_named_where_the_gap_of_1000_ns_is_more_than_both_clocks_bounds(
    bounds: tuple[int, int | None], said: str
) -> None:
    assert who_came_last([part(7, 2_000, bounds[0]), part(3, 1_000, bounds[1])]) == said


def test_of_two_at_one_instant_neither_is_named() -> None:
    assert who_came_last([part(0, 5, 0), part(1, 5, 0)]) == "several came last, at one instant"
