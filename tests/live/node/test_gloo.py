"""Rows of a real training with collectives equal those of the report, even if the agent is killed."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import traincope
from tests.distributed.ranks.pool import Pool
from tests.live.node.test_agent import offline_rows, rows_of
from tests.live.processes import agents_of, kill_agents, until
from tests.live.recorded import rank_of
from traincope.cli.commands.agent import INTERVAL_VARIABLE, SHARE_VARIABLE
from traincope.record.run import active_run
from traincope.record.session.agent import start_agent
from traincope.record.session.options import AGENT_VARIABLE
from traincope.store import read_run
from traincope.store.layout import ROWS_FILE
from traincope.store.side_tables.rows import read_rows

STEPS = 60


def train(out: str, *, pause: Callable[[int], None] = lambda _: None) -> None:
    """Rank 1 waits for some collectives of the previous step, long after rank 0 finished them.

    It uses a new group because another test may have named the world's axis.
    """
    rank, group = dist.get_rank(), dist.new_group()
    layers = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    model = nn.parallel.DistributedDataParallel(layers, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = None
    with traincope.run(out, budget=None) as run:
        for step in range(STEPS):
            pause(step)
            model(torch.ones(4, 16)).square().mean().backward()
            work = dist.all_reduce(torch.ones(8), group=group, async_op=True)
            if rank == step % 2:
                time.sleep(0.002)
            if rank == 0:
                work.wait()
            elif before is not None:
                before.wait()
            before = work
            dist.all_reduce(torch.ones(64), group=group)
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=1.0)
            run.step()
        assert before is not None
        before.wait()


def train_beside_an_agent(out: str) -> None:
    """Rank 0 kills the agent twice and starts another. The training does not notice."""
    os.environ |= {AGENT_VARIABLE: "on", INTERVAL_VARIABLE: "0.05", SHARE_VARIABLE: "1"}

    def pause(step: int) -> None:
        if step in (20, 40) and dist.get_rank() == 0:
            run = active_run()
            assert run is not None
            assert run._recorder is not None
            assert run._recorder.place is not None
            until(lambda: len(read_rows(rank_of(Path(out)), rank=0)) > step - 10, "its rows")
            kill_agents(Path(out))
            start_agent(run._recorder.place, 1 << 30)

    try:
        train(out, pause=pause)
    finally:
        os.environ[AGENT_VARIABLE] = "off"


def test_rows_written_during_training_equal_the_report(two_ranks: Pool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    two_ranks.run(train_beside_an_agent, str(run), timeout_seconds=120.0)
    until(lambda: not agents_of(run), "the agent's end")
    rows, expected = rows_of(run, ranks=2), offline_rows(run)
    assert len(expected) == 2 * STEPS
    assert rows == expected
    lines = [len((rank_of(run, rank) / ROWS_FILE).read_bytes().splitlines()) for rank in range(2)]
    assert lines == [STEPS, STEPS]
    assert any("exposed_wait[dp]" in terms for _, terms in rows.values())
    assert all(rank.info.ending == "clean" for rank in read_run(run).ranks)
