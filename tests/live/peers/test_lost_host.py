"""Two hosts, made of namespaces, train together with torchrun and gloo. One is lost, with its run directory."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.live.peers.hosts import hosts, why_not
from tests.live.peers.jobs import report, started
from tests.live.processes import agents_of, until
from traincope.store import read_run
from traincope.timeline.building import build_timeline

REASON = why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
PAUSED_STEP = 10


def resume(tmp_path: Path) -> Path:
    """The file that lets rank 0 go on."""
    return tmp_path / "resume"


def training(tmp_path: Path) -> tuple[object, ...]:
    return "tests.live.peers.training", PAUSED_STEP, resume(tmp_path)


def waits_in(run: Path, ranks: tuple[int, ...]) -> bool:
    """True once the copies of the ranks show them in the paused step, in a collective that does not end."""
    if not (run / "run.json").exists() or not list(run.glob("attempt-000/witness/*/rank-*/main-*.seg")):
        return False
    copies = {rank.rank: rank for rank in build_timeline(read_run(run)).witnessed}
    return set(copies) == set(ranks) and all(
        copy.open_step == PAUSED_STEP and "all_reduce" in {record.what for record in copy.open_records}
        for copy in copies.values()
    )


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.sweep)])
def test_the_report_of_the_other_host_names_a_lost_host_and_what_its_ranks_were_in(tmp_path: Path, ranks: int) -> None:
    of_b = tuple(range(ranks, 2 * ranks))
    with hosts("a", "b") as made, started(tmp_path, made, training=training(tmp_path), ranks=ranks) as job:
        job.until(lambda: waits_in(job.runs["a"], of_b), "the copies of b's ranks at a")
        made[1].unplug()
        made[1].kill()
        shutil.rmtree(job.runs["b"])
        resume(tmp_path).touch()  # rank 0 goes on, and waits for a rank that is gone
        until(lambda: "host b has not been heard" in job.agent_log("a"), "a's witness")
        until(lambda: "hang: host b was lost" in job.agent_log("a"), "a's watchdog")
        document = report(job.runs["a"])
    first, fault = document["verdict"][0], [fault for fault in document["faults"] if fault["kind"] == "lost_host"]
    assert (first["kind"], first["ranks"], first["steps"]) == ("lost_host", list(of_b), [PAUSED_STEP])
    assert first["confidence"] == "medium"
    assert first["evidence"].startswith("host b was lost; last heard of ")
    named = "rank 1" if ranks == 1 else "ranks 2, 3"
    assert f"its ranks were in backward > all_reduce on dp, step {PAUSED_STEP} ({named})" in first["evidence"]
    assert [entry["ranks"] for entry in fault] == [list(of_b)]
    (hang,), others = document["hangs"][:1], document["hangs"][1:]
    assert others == []
    assert (hang["kind"], hang["host"], hang["culprits"], hang["suspects"]) == ("lost_host", "b", [], list(of_b))
    others = [finding for finding in document["verdict"][1:] if set(finding["ranks"]) & set(of_b)]
    assert {finding["confidence"] for finding in others} <= {"unknown"}  # no rank of the lost host is accused


@pytest.mark.sweep
@pytest.mark.parametrize("killed", ["a", "b"])
def test_a_killed_agent_is_no_lost_host_and_harms_nothing(tmp_path: Path, killed: str) -> None:
    """The job goes on to its end."""
    with hosts("a", "b") as made, started(tmp_path, made, training=training(tmp_path), STEPS="600") as job:
        job.until(lambda: waits_in(job.runs["a"], (1,)), "the copies of b's rank at a")
        (agent,) = [pid for pid in agents_of(tmp_path / "local/run") if made["ab".index(killed)].has(pid)]
        os.kill(agent, signal.SIGKILL)
        resume(tmp_path).touch()
        assert [process.wait(timeout=250) for process in job.processes.values()] == [0, 0], job.all_logs()
        document = report(job.runs["a"])
    assert "lost_host" not in {finding["kind"] for finding in document["verdict"]}
    assert read_run(job.runs["a"]).ranks[0].info.ending == "clean"
    assert document["run"]["steps"] == 599  # without the warm-up step


@pytest.mark.sweep
def test_hosts_that_take_leave_are_not_lost(tmp_path: Path) -> None:
    with hosts("a", "b") as made, started(tmp_path, made, training=training(tmp_path), STEPS="100") as job:
        job.until(lambda: waits_in(job.runs["a"], (1,)), "the copies of b's rank at a")
        resume(tmp_path).touch()
        assert [process.wait(timeout=250) for process in job.processes.values()] == [0, 0], job.all_logs()
        until(lambda: any(host.heard.farewell for host in read_run(job.runs["a"]).witnessed), "b's farewell")
        document = report(job.runs["a"])
    assert "lost_host" not in {finding["kind"] for finding in document["verdict"]}
    (copy,) = read_run(job.runs["a"]).witnessed[0].ranks
    assert copy.info.ending == "clean"
