"""What a longer message costs, and whose it is, on all-to-alls drawn on paper."""

import pytest

from tests.timeline.build import Row, collective, group, rank, step, timeline
from traincope.analysis import Uneven, analyze

EP = group("ep", 0, 1, 2, 3)


def exchange(*sent: int, begin: int = 10, end: int = 50, sequence: int = 0) -> list[Row]:
    """One all-to-all; what each rank sends."""
    return [collective(begin, end, name="all_to_all", num_bytes=each, sequence=sequence) for each in sent]


def uneven(*exchanges: list[Row], ranks: int = 4) -> Uneven | None:
    members = [
        rank(number, step(0, 0, 100), *(calls[number] for calls in exchanges), groups=[EP]) for number in range(ranks)
    ]
    (row,) = analyze(timeline(*members, world_size=4)).comm
    return row.uneven


def test_the_longest_message_beyond_the_mean_at_the_bandwidth_of_the_longest() -> None:
    """400 bytes in 40 ns are 10 a ns; the mean is 200, so the other 200 take 20 ns, on each of four ranks."""
    assert uneven(exchange(100, 100, 400, 200)) == Uneven(ranks=(2,), ratio=2.0, cost_ns=4 * 20)


def test_what_all_send_alike_says_nothing() -> None:
    """Rows that go out, before it is decided who gets them, are as many on every rank."""
    even = exchange(1_000, 1_000, 1_000, 1_000)
    back = exchange(100, 100, 400, 200, begin=50, end=90, sequence=1)
    assert uneven(even) is None
    assert uneven(even, back) == Uneven(ranks=(2,), ratio=2.0, cost_ns=4 * 20)


def test_ranks_that_take_turns_cost_time_but_none_of_them_is_hot() -> None:
    """(300 - 150) of 300 bytes: half of each exchange's 40 ns."""
    turns = [
        exchange(
            *(300 if one == number else 100 for one in range(4)),
            begin=20 * number,
            end=20 * number + 20,
            sequence=number,
        )
        for number in range(4)
    ]
    found = uneven(*turns)
    assert found is not None
    assert (found.ratio, found.cost_ns) == (pytest.approx(1.0), 4 * 4 * 10)


def test_an_exchange_whose_other_ranks_left_no_record_has_no_mean() -> None:
    assert uneven(exchange(100, 100, 400, 200), ranks=3) is None


def test_every_group_of_an_axis_has_its_own_mean_and_its_own_hot_rank() -> None:
    """Ranks 0 and 1 send 10 and 30, ranks 2 and 3 600 and 200: each group's mean is half of what it sends."""
    pairs = [group("ep", 0, 1), group("ep", 2, 3)]
    members = [
        rank(number, step(0, 0, 100), collective(0, 10, name="all_to_all", num_bytes=sent), groups=[pairs[number // 2]])
        for number, sent in enumerate((10, 30, 600, 200))
    ]
    (row,) = analyze(timeline(*members)).comm
    assert row.uneven is not None
    assert (row.uneven.ranks, row.uneven.ratio) == ((1, 2), 1.5)


def test_a_group_that_is_nearly_even_has_no_hot_rank_beside_one_that_is_not() -> None:
    pairs = [group("ep", 0, 1), group("ep", 2, 3)]
    members = [
        rank(number, step(0, 0, 100), collective(0, 10, name="all_to_all", num_bytes=sent), groups=[pairs[number // 2]])
        for number, sent in enumerate((100, 104, 600, 200))
    ]
    (row,) = analyze(timeline(*members)).comm
    assert row.uneven is not None
    assert row.uneven.ranks == (2,)


def test_other_operations_are_not_looked_at() -> None:
    gathers = [collective(0, 10, num_bytes=sent) for sent in (100, 100, 400, 200)]
    members = [rank(number, step(0, 0, 100), call, groups=[EP]) for number, call in enumerate(gathers)]
    (row,) = analyze(timeline(*members)).comm
    assert row.uneven is None
