"""Windows of detail across ranks: what is in them is complete and matched, whatever each rank decided by itself."""

import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.distributed.ranks.pool import Pool
from traincope.analysis.ledger.coverage import find_excluded_steps
from traincope.events import BLOCK_STEPS, Kind
from traincope.record.session import sampling
from traincope.record.session.sampling import is_window
from traincope.timeline import Timeline, match_instances

SEED = "sampled"
STEPS = 16 * BLOCK_STEPS


def train(directory: str, halvings: tuple[int, int]) -> None:
    """DDP in which each rank needs its own number of halvings."""
    os.environ["TRAINCOPE_BUDGET"] = ""
    usual, mine, first = sampling.needed_halvings, halvings[dist.get_rank()], sampling.FIRST_BLOCKS
    sampling.needed_halvings = lambda *_, **__: mine
    sampling.FIRST_BLOCKS = 0
    try:
        with traincope.run(directory, run_id=SEED):
            model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(STEPS):
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        sampling.needed_halvings, sampling.FIRST_BLOCKS = usual, first
        os.environ["TRAINCOPE_BUDGET"] = "none"


def detailed(halvings: int) -> set[int]:
    """Steps that are sampled: all of a window but its first, unless the step before has detail too."""
    blocks = {block for block in range(1, STEPS // BLOCK_STEPS) if is_window(block, halvings=halvings, seed=SEED)} | {0}
    in_windows = {block * BLOCK_STEPS + place for block in blocks for place in range(BLOCK_STEPS)}
    return {step for step in in_windows if step == 0 or step - 1 in in_windows}


def steps_with_detail(timeline: Timeline, rank: int) -> set[int]:
    return {step.number for step in timeline.ranks[rank].steps if step.detailed}


@pytest.fixture(scope="module")
def disagreeing(two_ranks: Pool, tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Two ranks, of which the second has half as many windows."""
    directory = tmp_path_factory.mktemp("disagreeing") / "run"
    two_ranks.run(train, str(directory), (1, 2))
    return traincope.open_run(directory)


def test_ranks_that_disagree_share_the_windows_of_the_rarer(disagreeing: Timeline) -> None:
    timeline = disagreeing
    assert [steps_with_detail(timeline, rank) for rank in (0, 1)] == [detailed(1), detailed(2)]
    assert detailed(2) < detailed(1)
    instances = match_instances(timeline)
    shared = np.isin(instances.parts.step, sorted(detailed(2)))
    assert instances.complete[instances.number[shared]].all()
    assert instances.num_shifted == 0
    alone = np.isin(instances.parts.step, sorted(detailed(1) - detailed(2)))
    assert not instances.complete[instances.number[alone & (instances.parts.step % BLOCK_STEPS > 0)]].any()


def test_all_that_is_reported_stands_on_steps_with_detail_on_all_ranks(disagreeing: Timeline) -> None:
    ledger, long = traincope.analyze(disagreeing).ledger, find_excluded_steps(disagreeing).early
    for rank in ledger.ranks:
        counted = set(rank.numbers[rank.counted].tolist())
        assert counted == detailed(2) - {0} - long
        assert (rank.terms["exposed_transfer[dp]"][rank.counted] > 0).all()
        assert rank.timed.sum() == STEPS - 1
    assert (ledger.timed_steps, ledger.rank_steps) == (STEPS - 1, 2 * len(detailed(2) - {0} - long))


def switched(directory: str, blocks: int) -> tuple[int, int, int]:
    """Steps of which every second block is a window, next to two threads that issue collectives all the time."""
    groups = [[dist.new_group([rank]) for rank in (0, 1)][dist.get_rank()] for _ in range(2)]
    over, issued, errors = threading.Event(), [0, 0], []

    def issue(number: int) -> None:
        try:
            while not over.is_set():
                for _ in range(8):
                    dist.all_reduce(torch.ones(4), group=groups[number])
                    issued[number] += 1
        except Exception as error:  # noqa: BLE001 - reported to the test
            errors.append(error)

    usual = sampling.is_window
    sampling.is_window = lambda block, **_: block % 2 == 0
    resident = []
    try:
        with traincope.run(directory, level=1) as run:
            run.step()
            threads = [threading.Thread(target=issue, args=(number,)) for number in range(2)]
            for thread in threads:
                thread.start()
            for block in range(blocks):
                for _ in range(BLOCK_STEPS):
                    run.step()
                if block in (blocks // 2, blocks - 1):
                    resident.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            over.set()
            for thread in threads:
                thread.join()
    finally:
        sampling.is_window = usual
        over.set()
    return len(errors), sum(issued), resident[1] - resident[0]


def test_windows_come_and_go_beside_threads_that_issue_collectives(two_ranks: Pool, tmp_path: Path) -> None:
    """2,000 blocks, of which every second is a window. The growth is that of records, whose segments stay mapped."""
    for errors, issued, grown_kib in two_ranks.run(switched, str(tmp_path / "run"), 2_000):
        assert errors == 0
        assert issued > 1_000
        assert grown_kib < 16 << 10
    timeline = traincope.open_run(tmp_path / "run")
    for rank, recorded in zip(timeline.ranks, timeline.run.ranks, strict=True):
        assert recorded.info.probes["collectives"] == "on"
        assert recorded.info.recorder["dropped"] == 0
        collectives = rank.of_kind(Kind.COLLECTIVE)
        keys = np.stack([collectives["group"], collectives["window"], collectives["sequence"]], axis=1)
        assert len(np.unique(keys, axis=0)) == len(keys)
