"""Hosts are lost under real torchruns: a spare takes the place, the rest goes on, and a host that returns is fenced.

What the ranks log and what the test does is the truth. Namespaces are the hosts; the rendezvous is on another one.
"""

from pathlib import Path

import pytest

import traincope
from tests.distributed.equality.test_equality import FP32
from tests.distributed.hosts.job import EVERY, STEPS, Event, Job
from tests.live.peers.hosts import why_not
from traincope.analysis.efficiency.goodput import Goodput, goodput
from traincope.engine.checkpoint.manifest import check_file, read_manifest
from traincope.engine.checkpoint.places.directory import complete_checkpoints, step_of

REASON = why_not()
pytestmark = [pytest.mark.sweep, pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.timeout(900)]
LOST_AT = 22
"""The host is lost after this step, so steps up to 20 are in a checkpoint."""


def attempts_of(job: Job) -> list[list[Event]]:
    """The log of rank 0, by attempt: each has a process of its own."""
    attempts: dict[tuple[str, int], list[Event]] = {}
    for event in job.events("begin", "step", "done", "lost"):
        attempts.setdefault((event.host, event.pid), []).append(event)
    return list(attempts.values())


def check(job: Job) -> Goodput:
    """Hold the report's numbers to the log of rank 0 of two attempts."""
    checkpoints = complete_checkpoints(job.run / "checkpoints")
    assert [step_of(path) for path in checkpoints] == [STEPS, STEPS - EVERY]
    for checkpoint in checkpoints:
        for name, saved in read_manifest(checkpoint).files.items():
            check_file(checkpoint, name, saved, whole=True)
    assert sorted(path.name for path in job.run.iterdir() if path.name.startswith("attempt-")) == [
        "attempt-000",
        "attempt-001",
    ]
    logged = attempts_of(job)
    assert len(logged) == 2
    result = goodput(traincope.open_run(job.run))
    assert result is not None
    steps = [[event.step for event in attempt if event.event == "step"] for attempt in logged]
    assert (steps[0][0], steps[1][-1]) == (1, STEPS)
    for attempt, events in zip(result.attempts, logged, strict=True):
        complete = [event.event for event in events].count("done")
        assert complete <= attempt.num_steps <= [event.event for event in events].count("step")
    resumed = logged[1][0].done
    assert resumed is not None
    assert (result.attempts[1].resumed_step, steps[1][0]) == (resumed, resumed + 1)
    assert result.steps_lost == result.attempts[0].num_steps - resumed
    assert result.steps_kept == STEPS
    check_times(result, logged)
    return result


def check_times(result: Goodput, logged: list[list[Event]]) -> None:
    """Each time is between two instants of the log: a step begins after `begin`, or after `done` of the one before."""
    shortest = longest = 0
    for events in logged:
        first, last = (event.at_ns for event in (events[1], events[-1]))
        shortest += [event.at_ns for event in events if event.event == "done"][-1] - first
        longest += last - events[0].at_ns
    assert shortest < result.steps_ns + result.checkpoint_stall_ns < longest + 1_000_000_000
    assert result.productive_ns is not None
    assert result.lost_ns is not None
    parts = (result.startup_ns, result.restart_ns, result.checkpoint_stall_ns, result.evaluation_ns, result.other_ns)
    assert result.elapsed_ns == result.productive_ns + result.lost_ns + sum(parts)
    assert result.elapsed_ns == result.attempts[1].last_ns - result.attempts[0].began_ns
    ended_ns, (began, first_step) = result.attempts[0].last_ns, logged[1][:2]
    assert began.at_ns - ended_ns <= result.restart_ns <= first_step.at_ns - ended_ns


def losses(job: Job, *, ranks: int) -> dict[int, list[float]]:
    """Step -> its loss in each attempt with so many ranks."""
    found: dict[int, list[float]] = {}
    for event in job.events("step"):
        if event.ranks == ranks:
            assert event.step is not None
            assert event.loss is not None
            found.setdefault(event.step, []).append(event.loss)
    return found


def test_a_hot_spare_takes_the_place_of_a_killed_host(tmp_path: Path) -> None:
    """Host a has rank 0. The rank of host b loses its connection, and its torchrun starts it again with host c."""
    expected = Job(tmp_path / "undisturbed").undisturbed()
    job = Job(tmp_path / "job")
    with job.on_hosts() as (a, b, c):
        for host in (a, b):
            job.start(host, nodes="2:2")
        job.until(lambda: bool(job.events("step")), "the first step")
        left = [job.start(c, nodes="2:2")]
        job.until(lambda: any(event.step == LOST_AT for event in job.events("done")), "the step")
        a.kill()
        job.until(lambda: all(process.poll() == 0 for process in left), "the end of the training")
    result = check(job)
    assert {event.host for event in job.events("step")} == {"a", "b"}
    assert {event.host for event in job.events("step", rank=1)} == {"b", "c"}
    for step, values in losses(job, ranks=2).items():
        assert set(values) == {expected[step]}
    (lost,) = job.events("lost", host="b")
    assert 0 <= result.attempts[0].last_ns - lost.at_ns < attempts_of(job)[1][0].at_ns - lost.at_ns


def test_the_rest_goes_on_with_fewer_ranks_without_a_killed_host(tmp_path: Path) -> None:
    """The data-parallel axis has one rank then, and the same global batch."""
    expected = Job(tmp_path / "undisturbed", dropout=0.0).undisturbed()
    job = Job(tmp_path / "job", dropout=0.0)
    with job.on_hosts() as (a, b, _):
        job.start(a, nodes="1:2", options=["--elastic"])
        left = job.start(b, nodes="1:2", options=["--elastic"])
        job.until(lambda: any(event.step == LOST_AT for event in job.events("done")), "the step")
        a.kill()
        job.until(lambda: left.poll() == 0, "the end of the training")
    check(job)
    assert [{event.ranks for event in attempt} for attempt in attempts_of(job)] == [{2}, {1}]
    for step, values in losses(job, ranks=2).items():
        assert set(values) == {expected[step]}
    for step, values in losses(job, ranks=1).items():
        assert values == [pytest.approx(expected[step], abs=FP32, rel=0)]


def test_a_host_that_was_cut_off_and_returns_cannot_commit(tmp_path: Path) -> None:
    """Host a is cut off while it commits step 20, after the rank of host b has written its part.

    The others begin again after step 15, and commit up to step 30 before host a returns and goes on with its commit.
    """
    expected = Job(tmp_path / "undisturbed").undisturbed()
    job = Job(tmp_path / "job", held=20)
    with job.on_hosts() as (a, b, c):
        for host in (a, b):
            job.start(host, nodes="2:2")
        job.until(lambda: bool(job.events("step")), "the first step")
        left = [job.start(c, nodes="2:2")]
        job.until(lambda: bool(job.events("held")), "the commit")
        a.unplug()
        job.until(lambda: any(event.step == 30 for event in job.events("commit", host="b")), "commits of host b")
        a.plug_in_again()
        job.release.touch()
        job.until(lambda: "error: " in job.log(a).read_text(), "the end of the attempt that was cut off")
        job.until(lambda: all(process.poll() == 0 for process in left), "the end of the training")
    check(job)
    commits = [(event.host, event.step) for event in job.events("commit")]
    assert commits == [*(("a", step) for step in (5, 10, 15)), *(("b", step) for step in range(20, STEPS + 1, EVERY))]
    assert [(event.host, event.step) for event in job.events("refused")] == [("a", 20)]
    (sentence,) = [line for line in job.log(a).read_text().splitlines() if line.startswith("error: ")]
    assert sentence.startswith("error: a later attempt (process ")
    assert f"on host b) has taken over the checkpoints in {job.run / 'checkpoints'}" in sentence
    assert [path.name for path in sorted((job.run / "checkpoints").iterdir())] == [
        "claim-00000002",
        f"step-{STEPS - EVERY:08d}",
        f"step-{STEPS:08d}",
    ]
    for step, values in losses(job, ranks=2).items():
        assert set(values) == {expected[step]}
