"""Real ranks of which some keep a tensor of every step: exactly these are named, and what holds the tensors."""

import mmap
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.distributed.ranks.pool import Pool
from tests.live.processes import DEADLINE_SECONDS, agents_of, until
from traincope.analysis import Analysis
from traincope.cli.commands.agent import INTERVAL_VARIABLE, SHARE_VARIABLE
from traincope.record.compute.memory.census import NUM_STEPS
from traincope.record.session.options import AGENT_VARIABLE
from traincope.store.job.requests import Cause, read_requests

MIB = 1 << 20
STEPS = 120
kept: list[torch.Tensor] = []


def fresh(num_bytes: int) -> torch.Tensor:
    """A tensor on new pages: one from the heap may lie where an earlier test has released memory."""
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8).fill_(1)


def train(out: str, growing: dict[int, int]) -> None:
    """`growing`: rank -> bytes that it keeps of every step. Rank 0 holds most, but from the start."""
    rank = dist.get_rank()
    base = fresh(256 * MIB) if rank == 0 else None
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    with traincope.run(out, budget=None) as run:
        for step in range(STEPS):
            batch = fresh(MIB).float().sum() * torch.ones(2, 8)
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            size = growing.get(rank, 0) if step < growing.get(-1, STEPS) else 0
            if size:
                kept.append(fresh(size))
            run.step()
    kept.clear()
    del base


def recorded(pool: Pool, run: Path, growing: dict[int, int]) -> Analysis:
    pool.run(train, str(run), growing)
    return traincope.analyze(traincope.open_run(run))


def growths(analysis: Analysis) -> list[tuple[int, ...]]:
    return [finding.ranks for finding in analysis.verdict if finding.kind == "memory_growth"]


def test_the_rank_that_grows_is_named_although_another_one_holds_more(two_ranks: Pool, tmp_path: Path) -> None:
    analysis = recorded(two_ranks, tmp_path / "run", {1: MIB})
    held = {use.rank: use for use in analysis.memory if use.measure == "resident"}
    assert held[0].last_bytes > held[1].last_bytes
    assert growths(analysis) == [(1,)]
    assert held[1].growth_bytes_per_step == pytest.approx(MIB, rel=0.1)
    assert abs(held[0].growth_bytes_per_step or 0.0) < 0.1 * MIB


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("growing", "named"),
    [({0: MIB, 1: 2 * MIB}, [(0, 1)]), ({}, []), ({1: MIB, -1: STEPS // 2}, [])],
    ids=["both", "none", "one that stops"],
)
def test_all_ranks_that_grow_are_named_and_no_others(
    two_ranks: Pool, tmp_path: Path, growing: dict[int, int], named: list[tuple[int, ...]]
) -> None:
    assert growths(recorded(two_ranks, tmp_path / "run", growing)) == named


def train_until_counted(out: str) -> None:
    """Rank 1 keeps a tensor of every step, until the agent's window for it is over."""
    os.environ |= {AGENT_VARIABLE: "on", INTERVAL_VARIABLE: "0.1", SHARE_VARIABLE: "1"}
    deadline, stopping = time.monotonic() + DEADLINE_SECONDS, torch.zeros(1)
    try:
        with traincope.run(out, budget=None) as run:
            kept: list[torch.Tensor] = []  # the pool has frozen the objects of modules: the collector skips them
            model = DistributedDataParallel(nn.Linear(8, 8), process_group=dist.new_group())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            step = 0
            while not stopping:
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if dist.get_rank():
                    kept.append(fresh(MIB))
                time.sleep(0.02)
                requests = [each for each in read_requests(Path(out)) if each.cause is Cause.MEMORY_GROWTH]
                over = bool(requests) and step > requests[0].first_step + 2 * NUM_STEPS
                stopping = torch.tensor([float(over or time.monotonic() > deadline)])
                dist.all_reduce(stopping)
                run.step()
                step += 1
    finally:
        os.environ[AGENT_VARIABLE] = "off"


@pytest.mark.sweep
def test_the_agent_finds_the_growth_and_the_census_names_the_list(two_ranks: Pool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    two_ranks.run(train_until_counted, str(run), timeout_seconds=2 * DEADLINE_SECONDS)
    until(lambda: not agents_of(run), "the agent's end")
    analysis = traincope.analyze(traincope.open_run(run))
    assert growths(analysis) == [(1,)]
    (group,) = (each for each in analysis.grown_tensors if each.rank == 1 and each.bytes >= NUM_STEPS * MIB)
    assert (group.shape, group.dtype, group.tensors) == ((MIB,), "uint8", NUM_STEPS)
    assert group.held_by is not None
    assert group.held_by.startswith("a list of ")
    assert not [each for each in analysis.grown_tensors if each.rank == 0 and each.bytes >= MIB]
    (finding,) = (each for each in analysis.verdict if each.kind == "memory_growth")
    assert finding.confidence == "high"
