"""Dependence of windows on earlier windows, on two hand-made ranks; times in ns."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.live.node.test_agent import offline_rows, options, rows_of
from tests.live.recorded import rank_of
from traincope.events import FORMAT_VERSION, Kind
from traincope.live.node.agent import Agent
from traincope.record.segments.writer import Shared, ThreadWriter
from traincope.record.session.identity import this_host
from traincope.store.layout import GROUPS_FILE, NAMES_FILE, RANK_FILE, RUN_FILE

GROUP = {"key": "g", "axis": "dp", "rule": "mesh", "ranks": [0, 1]}
ALL_REDUCE = 1


def begin_run(run: Path) -> None:
    run.mkdir()
    card = {"version": FORMAT_VERSION, "id": "run", "world_size": 2, "mesh": {}, "started_wall_ns": 0}
    (run / RUN_FILE).write_text(json.dumps({**card, "versions": {}, "command": "train.py", "settings": {}}))


def begin_rank(run: Path, rank: int) -> ThreadWriter:
    """Start a rank of this process, which runs until the test ends."""
    directory, host = rank_of(run, rank), this_host()
    directory.mkdir(parents=True)
    card = {"rank": rank, "coords": {}, "host": host.name, "boot_id": host.boot_id, "pid": os.getpid()}
    (directory / RANK_FILE).write_text(json.dumps({**card, "started_wall_ns": time.time_ns(), "probes": {}}))
    (directory / NAMES_FILE).write_text('[0, ""]\n[1, "all_reduce"]\n')
    (directory / GROUPS_FILE).write_text(f"{json.dumps([0, GROUP])}\n")
    return ThreadWriter(Shared(directory, segments_per_thread=4), thread="main")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    begin_run(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_a_wait_for_a_collective_of_the_previous_step_is_split(run: Path) -> None:
    """Rank 0 is in the collective from 850 to 950, so the transfer takes 100. Rank 1 is in it from 400 to 1100.

    Rank 1 stalls in the next step from 990 to 1100. The transfer begins at 1000: 10 wait, 100 transfer.
    """
    rank_0, rank_1 = begin_rank(run, 0), begin_rank(run, 1)
    for writer in (rank_0, rank_1):
        writer.write(Kind.STEP, 0, 960, step=0)
    rank_0.write(Kind.COLLECTIVE, 850, 950, name=ALL_REDUCE, step=0)
    agent = Agent(options(run))
    assert [(row.rank, row.step) for row in agent.look().rows] == [(0, 0), (1, 0)]
    agent._tidy()
    rank_1.write(Kind.COLLECTIVE, 400, 1100, name=ALL_REDUCE, step=0)
    rank_1.write(Kind.STALL, 990, 1100, name=ALL_REDUCE, step=1)
    for writer in (rank_0, rank_1):
        writer.write(Kind.STEP, 960, 2000, step=1)
        writer.close()
    first, second = agent.look().rows
    assert first.terms == {"unattributed": 1040}
    assert second.terms == {"exposed_wait[dp]": 10, "exposed_transfer[dp]": 100, "unattributed": 930}
    assert rows_of(run, ranks=2) == offline_rows(run)


@pytest.mark.slow
def test_a_phase_around_two_steps_counts_in_both(run: Path) -> None:
    """A phase around two steps counts in each for the part inside."""
    rank_0 = begin_rank(run, 0)
    rank_0.write(Kind.STEP, 0, 100, step=0)
    words, at = rank_0.write(Kind.PHASE, 60, -1, phase=1, step=0)
    agent = Agent(options(run))
    rank_0.write(Kind.STEP, 100, 200, step=1)
    assert [row.terms for row in agent.look().rows] == [
        {"unattributed": 60, "forward": 40},
        {"forward": 100},
    ]
    agent._tidy()
    words[at] = 230
    rank_0.write(Kind.STEP, 200, 300, step=2)
    assert [row.terms for row in agent.look().rows] == [{"forward": 30, "unattributed": 70}]
    rank_0.close()
    assert rows_of(run, ranks=1) == offline_rows(run)
