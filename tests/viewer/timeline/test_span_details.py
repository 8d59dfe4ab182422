"""The last arrival of a collective: a rank is named only where the clocks' error bounds allow no other."""

import pytest

from traincope.viewer.timeline.picking import RankPart
from traincope.viewer.timeline.span_details import last_arrival


def part(rank: int, start_ns: int, bound_ns: int | None) -> RankPart:
    return RankPart(rank=rank, start_ns=start_ns, end_ns=9_000, wait_ns=0, bound_ns=bound_ns)


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((0, 0), "rank 7 arrived last, at 2.000 µs"),
        ((400, 599), "rank 7 arrived last, at 2.000 µs"),
        ((400, 600), "last rank unknown, the clocks may differ by 1.00 us"),
        ((0, None), "last rank unknown, the clocks have no error bound"),
    ],
)
def test_the_last_rank_is_named_where_the_gap_of_1000_ns_exceeds_the_sum_of_both_bounds(
    bounds: tuple[int, int | None], text: str
) -> None:
    assert last_arrival([part(7, 2_000, bounds[0]), part(3, 1_000, bounds[1])]) == text


def test_two_arrivals_at_the_same_instant_name_no_rank() -> None:
    assert last_arrival([part(0, 5, 0), part(1, 5, 0)]) == "several ranks arrived last, at the same instant"
