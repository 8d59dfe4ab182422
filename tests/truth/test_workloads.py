"""Some of the trainings of `python -m tests.truth`: what they are is worked out on paper, and is what is recorded."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.distributed.pool import Pool
from tests.distributed.selection import swept
from tests.truth.links import SlowLinks
from tests.truth.playing import Watch, play, truth
from tests.truth.weighing import weigh
from tests.truth.workloads import MS, WORKLOADS, Workload

NAMED = {workload.name: workload for workload in WORKLOADS}
CHOSEN = "ddp: slow link, rank 0 late", "async: partly hidden", "dp x tp: slow links, rank 3 late"
STEPS = 3


def told(name: str) -> list[dict[str, float]]:
    """The truth of each rank in ms, without what is zero."""
    return [{term: ns / MS for term, ns in rank.items() if ns} for rank in truth(NAMED[name])]


def test_on_paper_a_late_rank_is_waited_for_and_the_wire_is_everybodys() -> None:
    """Of two buckets one is hidden beside the backward of the layer before."""
    both = {"forward": 200, "backward": 300, "exposed_transfer[dp]": 60, "hidden[dp]": 60}
    assert told("ddp: slow link, rank 0 late") == [{**both, "unattributed": 80}, {**both, "exposed_wait[dp]": 80}]


def test_on_paper_a_rank_that_is_busy_meanwhile_stands_still_for_nothing() -> None:
    """Each step rank 1 begins 80 after rank 0, 40 of which that computes; then 80 are on the wire."""
    assert told("async: partly hidden") == [
        {"forward": 240, "backward": 300, "exposed_transfer[dp]": 80},
        {"forward": 320, "backward": 300, "hidden[dp]": 80},
    ]


def test_on_paper_lateness_goes_from_axis_to_axis() -> None:
    """Rank 2 waits for rank 3 within their replica; the other replica then for both."""
    each = {"forward": 200, "backward": 300, "exposed_transfer[dp]": 60, "exposed_transfer[tp]": 80}
    assert told("dp x tp: slow links, rank 3 late") == [
        {**each, "exposed_wait[dp]": 80},
        {**each, "exposed_wait[dp]": 80},
        {**each, "exposed_wait[tp]": 80},
        {**each, "unattributed": 80},
    ]


def test_by_the_watch_nothing_is_shorter_than_on_paper() -> None:
    workload = Workload(name="short", parallel="tp", forward_ns=(MS, 2 * MS), backward_ns=(MS,))
    for played, known in zip(play(workload, Watch, steps=2), truth(workload), strict=True):
        assert all(step[term] >= known[term] for step in played for term in ("forward", "backward"))


def slow_sums() -> tuple[bool, float, bool]:
    """Whether a slow one is done at once; its sum; whether the operator is gloo's again afterwards."""
    before = torch._C._dispatch_dump("c10d::allreduce_")
    with SlowLinks({("all_reduce", dist.group.WORLD.group_name): 0.05}):
        ones = torch.ones(1)
        work = dist.all_reduce(ones, async_op=True)
        at_once = work.is_completed()
        work.wait()
    return at_once, ones.item(), torch._C._dispatch_dump("c10d::allreduce_") == before


def test_a_slow_link_brings_the_same_and_leaves_no_trace(two_ranks: Pool) -> None:
    assert two_ranks.run(slow_sums) == [(False, 2.0, True)] * 2


@pytest.fixture(scope="module")
def fresh() -> Iterator[Callable[[int], Pool]]:
    """Pools of their own: what other tests have left in a process (threads, groups, meshes) is no known workload."""
    pools: dict[int, Pool] = {}
    yield lambda size: pools.setdefault(size, Pool(size))
    for pool in pools.values():
        pool.stop()


@pytest.mark.timed
@pytest.mark.parametrize("name", swept(CHOSEN, but=CHOSEN[:2]))
def test_what_is_recorded_is_the_truth(name: str, fresh: Callable[[int], Pool], tmp_path: Path) -> None:
    weighed = weigh(fresh(NAMED[name].ranks), NAMED[name], tmp_path, steps=STEPS)
    if weighed.disturbed:
        pytest.skip(f"others use this machine: its own noise was {weighed.noise:.1%} of a step")
    assert [row for row in weighed.rows() if not row.holds] == []
