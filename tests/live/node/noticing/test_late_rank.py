"""A rank that the others seem to wait for, by the rows of the node's ranks."""

import random
from dataclasses import replace

import pytest

from traincope.live.node.noticing.anomaly_windows import MIN_STEPS, LateRank
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


@pytest.mark.parametrize(("every", "steps", "late"), [(2, 18, 1), (3, 36, 1), (3, 18, None), (30, 60, None)])
def test_work_in_each_second_or_third_step_is_sampled_and_a_rare_slow_step_is_not(
    every: int, steps: int, late: int | None
) -> None:
    """Rank 1 works 30 more on average, as one that plans, packs or logs for all."""
    more = 30 * every
    mixed = [
        row(rank, step, own_ns=60 + more * (rank == 1 and step % every == 0), wall_ns=1000)
        for rank in range(3)
        for step in range(1, steps + 1)
    ]
    assert LateRank().judge(mixed) is None  # 3 % of a step
    mixed = [replace(each, wall_ns=100 + more) for each in mixed]
    assert LateRank().judge(mixed) == late


def test_noise_names_none() -> None:
    draw = random.Random(3)
    noisy = [row(rank, step, own_ns=draw.randint(40, 90)) for rank in range(3) for step in range(1, 65)]
    assert LateRank().judge(noisy) is None
