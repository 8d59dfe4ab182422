"""A rank that the others seem to wait for, by the rows of the node's ranks."""

import random

import pytest

from traincope.live.node.noticing.late_rank import MIN_STEPS, LateRank
from traincope.store.side_tables.rows import Row


def row(rank: int, step: int, *, own_ns: int, wall_ns: int = 100) -> Row:
    terms = {"forward": own_ns, "exposed_wait[dp]": wall_ns - own_ns}
    return Row(rank=rank, step=step, start_ns=step, wall_ns=wall_ns, own_ns=0, anomalous=False, terms=terms)


def rows(*, late: int | None, steps: int = MIN_STEPS, by: int = 30) -> list[Row]:
    return [row(rank, step, own_ns=60 + by * (rank == late)) for rank in range(3) for step in range(1, steps + 1)]


@pytest.mark.parametrize("late", [0, 2])
def test_the_rank_that_works_while_the_others_wait_is_late(late: int) -> None:
    assert LateRank().judge(rows(late=late)) == late


def test_rows_of_several_looks_count_together() -> None:
    every = rows(late=1)
    judged = LateRank()
    assert judged.judge(every[:-1]) is None
    assert judged.judge(every[-1:]) == 1


def test_equal_ranks_few_steps_and_small_delays_name_none() -> None:
    assert LateRank().judge(rows(late=None)) is None
    assert LateRank().judge(rows(late=1, steps=MIN_STEPS - 1)) is None
    assert LateRank().judge(rows(late=1, by=4)) is None
    assert LateRank().judge([each for each in rows(late=1) if each.rank == 1]) is None


def test_a_rank_that_is_late_in_some_steps_only_is_not_sampled() -> None:
    """Rank 1 works 90 more in every third step: 30 on average."""
    mixed = [
        row(rank, step, own_ns=60 + 90 * (rank == 1 and step % 3 == 0), wall_ns=200)
        for rank in range(3)
        for step in range(1, 31)
    ]
    assert LateRank().judge(mixed) is None


def test_noise_names_none() -> None:
    draw = random.Random(3)
    noisy = [row(rank, step, own_ns=draw.randint(40, 90)) for rank in range(3) for step in range(1, 65)]
    assert LateRank().judge(noisy) is None
