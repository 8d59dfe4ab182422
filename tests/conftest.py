"""Fixtures that every test may use: the pools of worker processes."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.distributed.pool import Pool

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TRAINCOPE_METRICS"] = "off"  # agents of tests take no port, but where one is asked for
os.environ["TRAINCOPE_AGENT"] = "off"  # a process for each of the many short runs; tests of the agent start it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Others may use this machine: an error of ours is there again, their hiccup is not. No tolerance changes."""
    for item in items:
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.fixture(autouse=True)
def _nothing_stays_compiled() -> Iterator[None]:
    """What a test has compiled would keep every later one of this process from counting FLOPs."""
    yield
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["stats"]["unique_graphs"]:
        sys.modules["torch._dynamo"].reset()
        dynamo.counters.clear()


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
