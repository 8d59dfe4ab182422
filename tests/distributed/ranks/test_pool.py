"""The pool: it reports the rank that raised, died or hung, and works in the next test."""

import os
import signal
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks.pool import Pool, RankFailed


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.stop()


def sum_of_ranks(extra: int) -> int:
    total = torch.tensor(dist.get_rank() + extra)
    dist.all_reduce(total)
    return int(total)


def fail_on_rank_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("on purpose")
    dist.barrier()


def die_on_rank_zero() -> None:
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def hang_on_rank_one() -> None:
    if dist.get_rank() == 1:
        signal.pause()


def warn() -> None:
    warnings.warn("careless", UserWarning, stacklevel=1)


def assert_pool_works(pool: Pool) -> None:
    assert pool.run(sum_of_ranks, 10) == [21, 21]


def test_each_rank_runs_the_function_in_one_group(pool: Pool) -> None:
    assert_pool_works(pool)
    assert pool.run(dist.get_rank) == [0, 1]


def test_an_exception_is_reported_with_its_rank_and_traceback(pool: Pool) -> None:
    with pytest.raises(RankFailed) as failed:
        pool.run(fail_on_rank_one)
    assert "ValueError: on purpose" in failed.value.reports[1]
    assert "on purpose" not in failed.value.reports.get(0, "")
    assert_pool_works(pool)


def test_a_dead_rank_is_reported_with_its_exit_code(pool: Pool) -> None:
    with pytest.raises(RankFailed) as failed:
        pool.run(die_on_rank_zero)
    assert failed.value.reports == {0: "died with exit code -9"}
    assert_pool_works(pool)


def test_a_rank_that_hangs_is_reported(pool: Pool) -> None:
    with pytest.raises(RankFailed) as failed:
        pool.run(hang_on_rank_one, timeout_seconds=2.0)
    assert failed.value.reports == {1: "did not answer in 2 s"}
    assert_pool_works(pool)


def test_a_warning_is_an_error_on_the_ranks_too(pool: Pool) -> None:
    with pytest.raises(RankFailed, match="careless"):
        pool.run(warn)
