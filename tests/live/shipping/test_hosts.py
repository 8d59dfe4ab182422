"""Two hosts, made of namespaces, train with torchrun and gloo, record on their own disks and ship to a shared one."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.live.peers.hosts import MadeHost, hosts, why_not
from tests.live.peers.jobs import Job, report, started
from traincope.events import OPEN, Kind
from traincope.store import RankRecords, read_run
from traincope.store.lines import read_object
from traincope.store.reading import find_run

REASON = why_not()
pytestmark = [pytest.mark.launchers, pytest.mark.timeout(1800), pytest.mark.skipif(bool(REASON), reason=REASON)]
TRAINCOPE = (sys.executable, "-m", "traincope.cli.main")
DEADLINE_SECONDS = 800.0
PAUSED_STEP = 20
INTERVAL_SECONDS = 2


@contextmanager
def job(
    tmp_path: Path, *, steps: int, pauses: bool = False, **variables: str
) -> Iterator[tuple[tuple[MadeHost, ...], Job]]:
    """A job of hosts a and b. Each has its own $TMPDIR, on a disk that outlives it. `pauses`: until `resume` exists."""
    training = ("tests.live.peers.training", PAUSED_STEP if pauses else -1, tmp_path / "resume")
    settings = {
        "STEPS": str(steps),
        "TMPDIR": str(tmp_path / "disk"),
        "TRAINCOPE_LOCAL": "on",
        "TRAINCOPE_SHIP_INTERVAL": str(INTERVAL_SECONDS),
        "TRAINCOPE_SHIP_WAIT": "120",
        "TRAINCOPE_WITNESS": "off",
        **variables,
    }
    (tmp_path / "disk").mkdir()
    with hosts("a", "b") as made:
        for host in made:
            host.mount(disk_of(tmp_path, host.name), tmp_path / "disk")
        with started(tmp_path, made, training=training, shared=True, **settings) as running:
            yield made, running


def until(running: Job, true: Callable[[], bool], what: str) -> None:
    """Poll while all launchers run. A busy machine may take minutes to import torch four times."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not true():
        assert all(process.poll() is None for process in running.processes.values()), running.all_logs()
        assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS:g} s for {what}\n{running.all_logs()}"
        time.sleep(0.2)


def disk_of(tmp_path: Path, host: str) -> Path:
    return tmp_path / f"disk-{host}"


def local_run(tmp_path: Path, host: str) -> Path:
    (manifest,) = disk_of(tmp_path, host).glob("traincope-*/records-*/run.json")
    return manifest.parent


def rank_of(run: Path, rank: int) -> RankRecords:
    (records,) = [each for each in read_run(run).ranks if each.rank == rank]
    return records


def wall_offset_ns(records: RankRecords) -> int:
    """Wall time minus monotonic time, by the first reading of both clocks."""
    clock = records.thread("main")
    first = clock[clock["kind"] == Kind.CLOCK][0]
    return int(first["value"]) - int(first["start_ns"])


def note(run: Path, host: str) -> Mapping[str, object]:
    (path,) = run.glob(f"attempt-000/shipped-{host}-*.json")
    return read_object(path)


def test_both_hosts_records_arrive_and_nothing_stays_on_the_hosts(tmp_path: Path) -> None:
    with job(tmp_path, steps=40) as (_, running):
        for process in running.processes.values():
            assert process.wait() == 0, running.all_logs()
        run = running.runs["a"]
        document = report(run)
        assert (document["recorder"]["problems"], document["run"]["world_size"]) == ([], 2)
        assert read_run(run).missing == ()
        assert {rank.info.host.name for rank in read_run(run).ranks} == {"a", "b"}
        assert [note(run, host)["complete"] for host in ("a", "b")] == [True, True]
        assert (run.stat().st_mode & 0o777, (run / "run.json").stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_lost_host_costs_at_most_what_followed_its_last_shipping(tmp_path: Path) -> None:
    """The host's disk outlives it here, so that what it had recorded is known."""
    with job(tmp_path, steps=100_000) as (made, running):
        run = running.runs["a"]
        until(running, lambda: len(list(run.glob("attempt-000/shipped-b-*.json"))) == 1, "b's first shipping")
        first = note(run, "b")["at_wall_ns"]
        until(running, lambda: note(run, "b")["at_wall_ns"] != first, "b's second shipping")
        made[1].kill()
        recorded, shipped = rank_of(local_run(tmp_path, "b"), 1), rank_of(run, 1)
        shipped_until_ns = note(run, "b")["at_wall_ns"]
        assert isinstance(shipped_until_ns, int)
        assert note(run, "b")["complete"] is False
    truth, arrived = recorded.thread("main"), shipped.thread("main")
    before = truth["start_ns"] + wall_offset_ns(recorded) < shipped_until_ns
    in_writing = 1  # a thread takes the time of a record before it writes it
    assert 0 < np.count_nonzero(before) - in_writing <= len(arrived) <= len(truth)
    closed = arrived["end_ns"] != OPEN
    assert arrived[closed].tobytes() == truth[: len(arrived)][closed].tobytes()
    assert shipped.names == recorded.names[: len(shipped.names)]
    assert shipped.problems == ()


def test_a_killed_agents_records_stay_and_are_shipped_by_hand(tmp_path: Path) -> None:
    with job(tmp_path, steps=40, pauses=True, TRAINCOPE_SHIP_WAIT="1") as (made, running):
        run = running.runs["a"]
        until(running, lambda: len(list(run.glob("attempt-000/shipped-b-*.json"))) == 1, "b's first shipping")
        agents = subprocess.run(made[1].command("pgrep", "-f", "commands.agent import"), capture_output=True, text=True)
        assert agents.stdout.split()
        made[1].run("kill", "-9", *agents.stdout.split())
        (tmp_path / "resume").touch()
        for process in running.processes.values():
            assert process.wait() == 0, running.all_logs()
        assert "ship them with `traincope ship" in running.logs["b"].read_text()
        assert note(run, "b")["complete"] is False
        recorded = rank_of(local_run(tmp_path, "b"), 1)
        by_hand = made[1].start(
            ["env", f"TMPDIR={tmp_path / 'disk'}", *TRAINCOPE, "ship", tmp_path / "local" / "run"],
            log=tmp_path / "by-hand.log",
            variables={},
        )
        assert by_hand.wait() == 0, (tmp_path / "by-hand.log").read_text()
        assert rank_of(find_run(run), 1).thread("main").tobytes() == recorded.thread("main").tobytes()
        assert note(run, "b")["complete"] is True
        assert not list(disk_of(tmp_path, "b").glob("traincope-*/records-*/attempt-*"))
