"""Agent as a process: the first rank starts it; it outlives each rank and ends with the last."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.node.test_agent import offline_rows, rows_of
from tests.live.processes import agents_of, kill_agents, lock_of, start_rank, the_agent_of, until
from tests.live.recorded import rank_of
from traincope.store.layout import AGENT_LOG, ROWS_FILE
from traincope.store.side_tables.rows import read_rows


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """Run directory. Agents that are left are killed."""
    yield tmp_path / "run"
    kill_agents(tmp_path / "run")
    lock_of(tmp_path / "run").unlink(missing_ok=True)


@pytest.fixture
def stop(tmp_path: Path) -> Iterator[Path]:
    """File that ends the trainings."""
    yield tmp_path / "stop"
    (tmp_path / "stop").touch()


def num_rows(run: Path, rank: int = 0) -> int:
    return len(read_rows(rank_of(run, rank), rank=rank))


def by_hand(run: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traincope.cli.main", "agent", str(run), "--interval", "0.1", "--share", "1"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)


def test_the_agent_outlives_a_killed_rank_and_ends_with_the_last(run: Path, stop: Path) -> None:
    ranks = [start_rank(run, stop, rank=rank, ranks=2) for rank in range(2)]
    agent = the_agent_of(run)
    assert os.getsid(agent) not in {os.getsid(rank.pid) for rank in ranks}
    assert Path(f"/proc/{agent}/stat").read_text().split()[3] not in {str(rank.pid) for rank in ranks}
    until(lambda: os.getpriority(os.PRIO_PROCESS, agent) >= 10, "a lower priority than the training")
    until(lambda: num_rows(run, 0) > 3 and num_rows(run, 1) > 3, "rows of both ranks")
    os.killpg(ranks[0].pid, signal.SIGKILL)
    ranks[0].communicate()
    before = num_rows(run, 1)
    until(lambda: num_rows(run, 1) > before + 3, "rows of the surviving rank")
    assert agents_of(run) == [agent]
    assert lock_of(run).exists()
    stop.touch()
    assert ranks[1].communicate()[1] == b""
    until(lambda: not agents_of(run), "the agent's end")
    assert ranks[1].returncode == 0
    assert rows_of(run, ranks=2) == offline_rows(run)
    assert not lock_of(run).exists()
    logs = "".join(path.read_text() for path in run.glob(f"attempt-000/*/{AGENT_LOG}"))
    assert "Traceback" not in logs
    assert "ledger rows written" in logs


def test_another_agent_continues_after_a_killed_one(run: Path, stop: Path) -> None:
    rank = start_rank(run, stop, rank=0, ranks=1)
    the_agent_of(run)
    until(lambda: num_rows(run) > 3, "rows")
    kill_agents(run)
    with (rank_of(run) / ROWS_FILE).open("ab") as file:
        file.write(b"[7,1")  # as if killed while writing
    stop.touch()
    assert rank.communicate()[1] == b""
    assert rank.returncode == 0
    assert num_rows(run) < len(offline_rows(run))
    again = by_hand(run)
    assert again.returncode == 0
    assert f"ledger rows written to {run.resolve()}/attempt-000" in again.stdout
    assert rows_of(run, ranks=1) == offline_rows(run)
    lines = (rank_of(run) / ROWS_FILE).read_bytes().splitlines()
    assert len(lines) == len(offline_rows(run))


def test_two_jobs_on_a_node_have_an_agent_each_and_one_job_has_one(run: Path, stop: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    ranks = [start_rank(run, stop, rank=rank, ranks=2) for rank in range(2)]
    ranks.append(start_rank(other, stop, rank=0, ranks=1))
    first, second = the_agent_of(run), the_agent_of(other)
    assert first != second
    until(lambda: len(list(run.glob("attempt-000/rank-*"))) == 2, "directories of both ranks")
    until(lambda: num_rows(run, 0) > 0 and num_rows(run, 1) > 0 and num_rows(other) > 0, "rows of all ranks")
    refused = by_hand(run)
    assert refused.returncode == 2
    assert refused.stderr == (
        f"traincope agent: an agent of this node already watches {run.resolve()}: it holds {lock_of(run)}\n"
    )
    stop.touch()
    for rank in ranks:
        rank.communicate()
    until(lambda: not agents_of(run) and not agents_of(other), "the end of both agents")
    assert len(list(run.glob(f"attempt-000/*/{AGENT_LOG}"))) == 1
    assert rows_of(run, ranks=2) == offline_rows(run)
    assert rows_of(other, ranks=1) == offline_rows(other)


def test_a_vanished_run_directory_ends_the_agent_but_not_the_training(run: Path, stop: Path) -> None:
    rank = start_rank(run, stop, rank=0, ranks=1)
    the_agent_of(run)
    until(lambda: num_rows(run) > 0, "rows")
    gone = run.rename(run.with_name("gone"))  # at once: files that are made meanwhile would keep rmtree from its end
    shutil.rmtree(gone)
    until(lambda: not agents_of(run), "the end of the agent")
    assert rank.poll() is None
    stop.touch()
    rank.communicate()
    assert rank.returncode == 0
    assert not lock_of(run).exists()


def test_an_agent_looks_once_more_after_sigterm(run: Path, stop: Path) -> None:
    rank = start_rank(run, stop, rank=0, ranks=1)
    agent = the_agent_of(run)
    until(lambda: num_rows(run) > 0, "rows")
    os.kill(agent, signal.SIGTERM)
    until(lambda: not agents_of(run), "the end of the agent")
    assert not lock_of(run).exists()
    assert rank.poll() is None
    stop.touch()
    rank.communicate()
    assert "ledger rows written" in (rank_of(run) / AGENT_LOG).read_text()
