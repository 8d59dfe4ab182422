"""Ranks that are alive are not called dead: one waits for the others, or all have lost their launcher."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import traincope
from tests.cli.test_commands import run
from tests.distributed.selection import swept
from traincope.errors import RunDirectoryError
from traincope.timeline import Timeline

WAITING = """
import os, sys, time, torch, torch.distributed as dist, traincope
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
here = sys.argv[1]
open(os.path.join(here, f"pid-{dist.get_rank()}"), "w").write(str(os.getpid()))
while dist.get_rank() != 1 and not os.path.exists(os.path.join(here, "stop")):
    with traincope.span("work"):
        time.sleep(0.01)
dist.all_reduce(torch.ones(2))
"""
"""Rank 1 waits in its second all-reduce, until the others are told to join it."""
CLEARLY_NS = 100_000_000
DEADLINE_SECONDS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    command: subprocess.Popen[str]
    here: Path
    ranks: int

    @property
    def out(self) -> Path:
        return self.here / "run"

    @property
    def pids(self) -> list[int]:
        return [int((self.here / f"pid-{rank}").read_text()) for rank in range(self.ranks)]

    def rank_1_waits(self) -> bool:
        """Return True once rank 1's last record is clearly older than those of all others."""
        try:
            timeline: Timeline = traincope.open_run(self.out)
        except RunDirectoryError:
            return False
        if len(timeline.ranks) < self.ranks or not all((self.here / f"pid-{n}").exists() for n in range(self.ranks)):
            return False
        others = min(rank.last_ns for rank in timeline.ranks if rank.rank != 1)
        waits = [record.what for record in timeline.ranks[1].open_records]
        return "all_reduce" in "".join(waits) and others - timeline.ranks[1].last_ns > CLEARLY_NS


@pytest.fixture(params=swept([2, 4], but=[2]))
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    script, ranks = tmp_path / "train.py", int(request.param)
    script.write_text(WAITING)
    command = [sys.executable, "-m", "traincope.cli.main", "run", "--out", str(tmp_path / "run"), "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRAINCOPE_AGENT": "off"}
    started = subprocess.Popen(
        [*command, str(script), str(tmp_path)], env=environment, stderr=subprocess.DEVNULL, text=True
    )
    job = Job(command=started, here=tmp_path, ranks=ranks)
    try:
        yield job
    finally:
        (tmp_path / "stop").touch()
        started.wait(DEADLINE_SECONDS)
        try:
            until(lambda: not any(map(exists, job.pids)), "the end of the ranks")
        except AssertionError as error:
            error.add_note("\n".join(map(stacks_of, filter(exists, job.pids))))
            raise


def stacks_of(pid: int) -> str:
    """Stacks of a rank that does not end."""
    py_spy = [Path(sys.executable).with_name("py-spy"), "dump", "--pid", str(pid)]
    return subprocess.run(py_spy, capture_output=True, text=True).stdout


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS:g} s for {what}"
        time.sleep(0.1)


def exists(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def launcher_of(pid: int) -> int:
    return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def assert_alive(text: str, document: dict[str, Any]) -> None:
    assert {fault["kind"] for fault in document["faults"] if not fault["mark"]} == {"no_end"}
    assert {fault["confidence"] for fault in document["faults"] if not fault["mark"]} == {"unknown"}
    first = document["verdict"][0]
    assert (first["kind"], first["ranks"], first["confidence"]) == ("running", [], "high")
    assert re.fullmatch(r"no step is recorded, last record .+ ago", first["evidence"])
    assert re.fullmatch(r"running: no step is recorded, last record .+ ago", text.splitlines()[1])
    assert "FAULTS" not in text
    assert not any(word in text for word in ("killed", "ended first", "SIGKILL", "out of memory"))


def test_a_living_rank_is_not_called_dead(job: Job) -> None:
    """Rank 1's last record is much older than the others' while it waits. Its launcher is killed, and it lives on."""
    until(job.rank_1_waits, "rank 1 to wait")
    assert_alive(run("report", str(job.out)).stdout, read_json(job))
    os.kill(launcher_of(job.pids[0]), signal.SIGKILL)
    job.command.wait(DEADLINE_SECONDS)
    assert all(map(exists, job.pids))
    assert_alive(run("report", str(job.out)).stdout, read_json(job))


def read_json(job: Job) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run("report", str(job.out), "--format", "json").stdout)
    return document
