"""Requested windows: their file, their steps, and the choice of steps that no rank reaches too early."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.live.recorded import dead_process, rank_of, record
from traincope.errors import RunDirectoryError, UsageError
from traincope.events import BLOCK_STEPS
from traincope.store.job import requesting
from traincope.store.job.manifests import RankInfo
from traincope.store.job.process import Process
from traincope.store.job.requesting import JobProgress, RankProgress, first_step_for, request_window
from traincope.store.job.requests import (
    TAIL_BYTES,
    Cause,
    WindowRequest,
    append_request,
    read_latest_requests,
    read_requests,
)
from traincope.store.layout import RANK_FILE, REQUESTS_FILE
from traincope.topology import Host, RankCoord

MS = 1_000_000
REQUEST = WindowRequest(
    attempt=1, first_step=63, num_steps=18, kernels=True, cause=Cause.SLOW_STEP, at_step=40, at_wall_ns=7
)


def test_a_window_ends_with_a_block_and_its_first_step_is_not_counted() -> None:
    """Step 63 leads in, 64 to 81 were requested, and 82 and 83 fill the block."""
    assert [step for step in range(100) if REQUEST.covers(step)] == list(range(63, 84))
    assert [step for step in range(100) if REQUEST.traces(step)] == list(range(64, 82))
    assert (replace(REQUEST, num_steps=20).end_step, replace(REQUEST, num_steps=21).end_step) == (84, 91)
    assert REQUEST.reason == "a slow step (step 40)"


def test_requests_are_read_back_by_attempt(tmp_path: Path) -> None:
    first = replace(REQUEST, attempt=0, cause=Cause.PROFILE, at_step=None)
    for request in (first, REQUEST):
        append_request(tmp_path, request)
    assert read_requests(tmp_path) == (first, REQUEST)
    assert read_requests(tmp_path, attempt=0) == (first,)
    assert read_requests(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    "change",
    [
        {"first_step": 64},
        {"first_step": -7},
        {"num_steps": 0},
        {"num_steps": 1_001},
        {"num_steps": True},
        {"cause": "a whim"},
        {"cause": []},
        {"attempt": None},
    ],
)
def test_lines_that_are_not_requests_are_left_out(tmp_path: Path, change: dict[str, object]) -> None:
    append_request(tmp_path, REQUEST)
    whole = (tmp_path / REQUESTS_FILE).read_text()
    odd = json.dumps(json.loads(whole) | change)
    (tmp_path / REQUESTS_FILE).write_text(f"{odd}\nno json\n[1]\n{whole}{whole.rstrip()}")
    assert read_requests(tmp_path) == (REQUEST,), "also the last line, which may still be written"


def test_of_a_large_file_only_the_newest_requests_are_read(tmp_path: Path) -> None:
    requests = [replace(REQUEST, first_step=BLOCK_STEPS * number) for number in range(1_000)]
    for request in requests:
        append_request(tmp_path, request)
    latest = read_latest_requests(tmp_path / REQUESTS_FILE, attempt=1)
    assert latest == tuple(requests[-len(latest) :])
    assert 20 <= len(latest) < TAIL_BYTES // 100


def rank_at(step: int, *, step_ms: int, shortest_ms: int, silent_ms: int = 0) -> RankProgress:
    info = RankInfo(
        coord=RankCoord(rank=0, coords={}),
        host=Host(name="host", boot_id="boot"),
        pid=1,
        started_wall_ns=0,
        ended_wall_ns=None,
        ending=None,
        probes={},
        recorder={},
    )
    return RankProgress(
        info=info,
        running=True,
        step=step,
        silent_ns=silent_ms * MS,
        step_ns=step_ms * MS,
        shortest_step_ns=shortest_ms * MS,
    )


def test_the_first_step_leaves_the_slowest_rank_time_to_look() -> None:
    """1 s until it looks, 2 s of margin, 2 x 60 ms for its steps: 3.12 s are 63 steps of 50 ms. 100 + 63 + 1 = 164."""
    ranks = (rank_at(100, step_ms=55, shortest_ms=50), rank_at(98, step_ms=60, shortest_ms=55))
    progress = JobProgress(attempt=0, ranks=ranks, all_local=True)
    assert first_step_for(progress) == 168
    assert (progress.step, progress.behind_step) == (100, 98)


def test_ranks_of_other_hosts_get_a_minute_and_the_steps_that_are_not_visible_yet() -> None:
    """1 + 60 + 0.12 s are 1,223 steps of 50 ms. 2.4 s ago it was in step 100. 100 + 40 + 1,223 + 1 = 1,364."""
    rank = rank_at(100, step_ms=60, shortest_ms=50, silent_ms=2_400)
    assert first_step_for(JobProgress(attempt=0, ranks=(rank,), all_local=False)) == 1_365


def as_if_it_ran(run: Path, **changes: object) -> None:
    """Remove the end from rank 0's card. Its process is this one, which runs."""
    card = rank_of(run) / RANK_FILE
    this = Process.this()
    assert this is not None
    ongoing = {"ending": None, "ended_wall_ns": None, "process": this.as_json()}
    card.write_text(json.dumps(json.loads(card.read_text()) | ongoing | changes))


def test_a_person_has_one_window_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, steps=20)
    as_if_it_ran(tmp_path)
    request_window(tmp_path, num_steps=7, cause=Cause.SLOW_STEP, at_step=3)
    request = request_window(tmp_path, num_steps=20, cause=Cause.PROFILE)
    assert request.first_step % BLOCK_STEPS == 0
    assert request.first_step > 20
    with pytest.raises(UsageError, match=f"by traincope profile: steps {request.first_step + 1} to"):
        request_window(tmp_path, num_steps=20, cause=Cause.VIEWER)
    assert [known.cause for known in read_requests(tmp_path)] == [Cause.SLOW_STEP, Cause.PROFILE]


def test_a_job_that_cannot_record_a_window_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, steps=20)
    with pytest.raises(RunDirectoryError, match="is not running: all its ranks have ended"):
        request_window(tmp_path, num_steps=20, cause=Cause.PROFILE)
    as_if_it_ran(tmp_path, level=0)
    with pytest.raises(UsageError, match=f"records level 0.*: echo 1 > {tmp_path}/named/level$"):
        request_window(tmp_path, num_steps=20, cause=Cause.PROFILE, named=tmp_path / "named")
    assert not (tmp_path / REQUESTS_FILE).exists()


def test_a_job_without_a_complete_step_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, steps=0)
    as_if_it_ran(tmp_path)
    with pytest.raises(RunDirectoryError, match="has completed no step yet"):
        request_window(tmp_path, num_steps=20, cause=Cause.PROFILE)


def test_a_job_whose_ranks_are_elsewhere_and_silent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, steps=20)
    as_if_it_ran(tmp_path, process=dead_process(boot_id="elsewhere"))
    request = request_window(tmp_path, num_steps=7, cause=Cause.SLOW_STEP, at_step=3)
    assert request.first_step > 60, "a minute ahead of steps far below a second"
    monkeypatch.setattr(requesting, "MAX_SILENCE_NS", 0)
    with pytest.raises(RunDirectoryError, match="is known to run: the latest step that this host can see began"):
        request_window(tmp_path, num_steps=7, cause=Cause.SLOW_STEP, at_step=3)
