"""Message imbalance of all-to-alls, computed by hand."""

import pytest

from tests.timeline.build import Row, collective, group, rank, step, timeline
from traincope.analysis import MessageImbalance, analyze

EP = group("ep", 0, 1, 2, 3)


def exchange(*sent: int, begin: int = 10, end: int = 50, sequence: int = 0) -> list[Row]:
    """Record one all-to-all with the bytes that each rank sends."""
    return [collective(begin, end, name="all_to_all", num_bytes=each, sequence=sequence) for each in sent]


def uneven(*exchanges: list[Row], ranks: int = 4) -> MessageImbalance | None:
    members = [
        rank(number, step(0, 0, 100), *(calls[number] for calls in exchanges), groups=[EP]) for number in range(ranks)
    ]
    (row,) = analyze(timeline(*members, world_size=4)).comm
    return row.message_imbalance


def test_the_cost_is_the_longest_message_above_the_mean_at_its_bandwidth() -> None:
    """400 bytes in 40 ns are 10 per ns; the mean is 200, so the other 200 take 20 ns, on each of four ranks."""
    assert uneven(exchange(100, 100, 400, 200)) == MessageImbalance(ranks=(2,), ratio=2.0, cost_ns=4 * 20)


def test_equal_messages_have_no_imbalance() -> None:
    """Every rank sends the same number of rows before the router decides on their receivers."""
    even = exchange(1_000, 1_000, 1_000, 1_000)
    back = exchange(100, 100, 400, 200, begin=50, end=90, sequence=1)
    assert uneven(even) is None
    assert uneven(even, back) == MessageImbalance(ranks=(2,), ratio=2.0, cost_ns=4 * 20)


def test_ranks_that_take_turns_cost_time_but_none_of_them_is_hot() -> None:
    """(300 - 150) of 300 bytes: half of each exchange's 40 ns."""
    turns = [
        exchange(
            *(300 if peer == number else 100 for peer in range(4)),
            begin=20 * number,
            end=20 * number + 20,
            sequence=number,
        )
        for number in range(4)
    ]
    result = uneven(*turns)
    assert result is not None
    assert (result.ratio, result.cost_ns) == (pytest.approx(1.0), 4 * 4 * 10)


def test_an_incomplete_all_to_all_has_no_imbalance() -> None:
    assert uneven(exchange(100, 100, 400, 200), ranks=3) is None


def test_every_group_of_an_axis_has_its_own_mean_and_its_own_hot_rank() -> None:
    """Ranks 0 and 1 send 10 and 30, ranks 2 and 3 600 and 200: each group's mean is half of what it sends."""
    pairs = [group("ep", 0, 1), group("ep", 2, 3)]
    members = [
        rank(number, step(0, 0, 100), collective(0, 10, name="all_to_all", num_bytes=sent), groups=[pairs[number // 2]])
        for number, sent in enumerate((10, 30, 600, 200))
    ]
    (row,) = analyze(timeline(*members)).comm
    assert row.message_imbalance is not None
    assert (row.message_imbalance.ranks, row.message_imbalance.ratio) == ((1, 2), 1.5)


def test_a_nearly_even_group_has_no_hot_rank_if_another_is_uneven() -> None:
    pairs = [group("ep", 0, 1), group("ep", 2, 3)]
    members = [
        rank(number, step(0, 0, 100), collective(0, 10, name="all_to_all", num_bytes=sent), groups=[pairs[number // 2]])
        for number, sent in enumerate((100, 104, 600, 200))
    ]
    (row,) = analyze(timeline(*members)).comm
    assert row.message_imbalance is not None
    assert row.message_imbalance.ranks == (2,)


def test_other_operations_have_no_imbalance() -> None:
    gathers = [collective(0, 10, num_bytes=sent) for sent in (100, 100, 400, 200)]
    members = [rank(number, step(0, 0, 100), call, groups=[EP]) for number, call in enumerate(gathers)]
    (row,) = analyze(timeline(*members)).comm
    assert row.message_imbalance is None
