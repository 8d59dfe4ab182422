"""Some trainings of `python -m evaluation.truth`: computed on paper, and equal to the record."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from evaluation.truth.machines.links import SlowLinks
from evaluation.truth.trainings.playing import RealClock, play, truth
from evaluation.truth.trainings.weighing import measure_workload
from evaluation.truth.trainings.workloads import MS, WORKLOADS, Workload
from tests.distributed.ranks.pool import Pool

NAMED = {workload.name: workload for workload in WORKLOADS}
CHOSEN = "ddp: slow link, rank 0 late", "async: partly hidden", "dp x tp: slow links, rank 3 late"
STEPS = 3


def terms_by_rank(name: str) -> list[dict[str, float]]:
    """The truth of each rank in ms, without zero terms."""
    return [{term: ns / MS for term, ns in rank.items() if ns} for rank in truth(NAMED[name])]


def test_a_late_rank_makes_the_others_wait_and_all_ranks_transfer() -> None:
    """One of two buckets is hidden behind the backward of the previous layer."""
    both = {"forward": 200, "backward": 300, "exposed_transfer[dp]": 60, "hidden[dp]": 60}
    assert terms_by_rank("ddp: slow link, rank 0 late") == [
        {**both, "unattributed": 80},
        {**both, "exposed_wait[dp]": 80},
    ]


def test_a_busy_rank_does_not_stall() -> None:
    """In each step rank 1 begins 80 after rank 0, which computes for 40 of them; then 80 are on the wire."""
    assert terms_by_rank("async: partly hidden") == [
        {"forward": 240, "backward": 300, "exposed_transfer[dp]": 80},
        {"forward": 320, "backward": 300, "hidden[dp]": 80},
    ]


def test_lateness_passes_from_axis_to_axis() -> None:
    """Rank 2 waits for rank 3 within their replica; the other replica then waits for both."""
    each = {"forward": 200, "backward": 300, "exposed_transfer[dp]": 60, "exposed_transfer[tp]": 80}
    assert terms_by_rank("dp x tp: slow links, rank 3 late") == [
        {**each, "exposed_wait[dp]": 80},
        {**each, "exposed_wait[dp]": 80},
        {**each, "exposed_wait[tp]": 80},
        {**each, "unattributed": 80},
    ]


def test_real_times_are_not_shorter_than_computed_ones() -> None:
    workload = Workload(name="short", parallel="tp", forward_ns=(MS, 2 * MS), backward_ns=(MS,))
    for played, known in zip(play(workload, RealClock, steps=2), truth(workload), strict=True):
        assert all(step[term] >= known[term] for step in played for term in ("forward", "backward"))


def slow_sums() -> tuple[bool, float, bool]:
    """True if a slow collective is complete at once; its sum; and whether gloo's operator is restored afterwards."""
    before = torch._C._dispatch_dump("c10d::allreduce_")
    with SlowLinks({("all_reduce", dist.group.WORLD.group_name): 0.05}):
        ones = torch.ones(1)
        work = dist.all_reduce(ones, async_op=True)
        at_once = work.is_completed()
        work.wait()
    return at_once, ones.item(), torch._C._dispatch_dump("c10d::allreduce_") == before


def test_a_slow_link_changes_no_result_and_is_removed(two_ranks: Pool) -> None:
    assert two_ranks.run(slow_sums) == [(False, 2.0, True)] * 2


@pytest.fixture(scope="module")
def fresh() -> Iterator[Callable[[int], Pool]]:
    """New pools, because remains of other tests in a process (threads, groups, meshes) are not part of a known
    workload.
    """
    pools: dict[int, Pool] = {}
    yield lambda size: pools.setdefault(size, Pool(size))
    for pool in pools.values():
        pool.stop()


@pytest.mark.timing
@pytest.mark.parametrize("name", CHOSEN)
def test_the_record_equals_the_truth(name: str, fresh: Callable[[int], Pool], tmp_path: Path) -> None:
    weighed = measure_workload(fresh(NAMED[name].ranks), NAMED[name], tmp_path, steps=STEPS)
    if weighed.disturbed:
        pytest.skip(f"disturbed machine: its noise was {weighed.noise:.1%} of a step")
    assert [row for row in weighed.rows() if not row.holds] == []
