"""Fixtures that every test may use: the pools of worker processes."""

import os
from collections.abc import Iterator

import pytest

from tests.distributed.pool import Pool

os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Pool]:
    """Two processes in one gloo group."""
    yield from _pool(2)


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Pool]:
    """Four processes in one gloo group."""
    yield from _pool(4)


def _pool(size: int) -> Iterator[Pool]:
    pool = Pool(size)
    yield pool
    pool.stop()
