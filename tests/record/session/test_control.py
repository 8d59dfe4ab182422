"""Control of a running job by files: what a rank reads when, and what a request does to its steps."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import traincope
from traincope.events import BLOCK_STEPS, Flag, Kind
from traincope.record.session import recorder, sampling
from traincope.record.session.control import Control
from traincope.record.session.rendezvous import Place
from traincope.store import read_run
from traincope.store.job.requests import Cause, WindowRequest, append_request
from traincope.store.layout import LEVEL_FILE, REQUESTS_FILE

STEPS = 10 * BLOCK_STEPS


def request(first_block: int, *, attempt: int = 0, kernels: bool = False) -> WindowRequest:
    return WindowRequest(
        attempt=attempt,
        first_step=first_block * BLOCK_STEPS,
        num_steps=BLOCK_STEPS - 1,
        kernels=kernels,
        cause=Cause.PROFILE,
        at_step=None,
        at_wall_ns=0,
    )


def place(run: Path, *, attempt: int = 0) -> Place:
    return Place(rank=0, world_size=1, run_id="run", name="run", run=run, attempt=attempt, directory=run)


def test_a_look_reads_the_level_and_the_requests(tmp_path: Path) -> None:
    files = Control()
    files.look(place(tmp_path))
    assert (files.level, files.requests) == (None, ())
    append_request(tmp_path, request(3))
    (tmp_path / LEVEL_FILE).write_text("2\n")
    files.look(place(tmp_path))
    assert (files.level, files.requests) == (2, (request(3),))


def test_requests_of_another_attempt_are_ignored(tmp_path: Path) -> None:
    append_request(tmp_path, request(3))
    append_request(tmp_path, request(4, attempt=1))
    files = Control()
    files.look(place(tmp_path, attempt=1))
    assert files.requests == (request(4, attempt=1),)
    assert files.requests_at(3 * BLOCK_STEPS) == ()
    assert files.requests_at(4 * BLOCK_STEPS) == (request(4, attempt=1),)


def test_a_removed_file_requests_nothing(tmp_path: Path) -> None:
    append_request(tmp_path, request(3))
    files = Control()
    files.look(place(tmp_path))
    assert files.requests
    (tmp_path / REQUESTS_FILE).unlink()
    files.look(place(tmp_path))
    assert not files.requests


REPLACED: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link": lambda path: (path.with_name("target").write_text("2\n"), path.symlink_to("target")),
    "a directory": Path.mkdir,
    "a huge line": lambda path: path.write_bytes(b'{"first_step":1,' * 1_000_000),
    "deep JSON": lambda path: path.write_bytes(b"[" * 200_000 + b"\n"),
    "many digits": lambda path: path.write_bytes(b"9" * 1_000_000),
    "two digits": lambda path: path.write_bytes(b"10\n"),
    "a digit of another script": lambda path: path.write_text("\u0663"),
    "a digit above the line": lambda path: path.write_text("\u00b2"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\0"),
}


@pytest.mark.parametrize("how", REPLACED)
def test_whatever_replaces_the_files_requests_nothing_and_is_not_waited_for(tmp_path: Path, how: str) -> None:
    def too_late(*_: object) -> None:
        raise TimeoutError("the training waits")

    for name in (LEVEL_FILE, REQUESTS_FILE):
        REPLACED[how](tmp_path / name)
    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(60)
    try:
        files = Control()
        files.look(place(tmp_path))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert (files.level, files.requests) == (None, ())


def test_kernels_are_ahead_until_the_trace_of_the_last_step_is_written() -> None:
    files = Control()
    files.requests = (request(3, kernels=True),)
    assert [step for step in range(100) if files.traces(step)] == list(range(3 * BLOCK_STEPS + 1, 4 * BLOCK_STEPS))
    assert [step for step in range(100) if files.traces_from(step)] == list(range(4 * BLOCK_STEPS + 1))


def record(run: Path, patch: pytest.MonkeyPatch, *, drawn: set[int], requested: set[int]) -> traincope.Run:
    """Empty steps. Detail is drawn in some blocks and requested in others."""
    patch.setattr(recorder, "CLOCK_INTERVAL_NS", 0)
    patch.setattr(sampling, "is_window", lambda block, **_: block in drawn)
    run.mkdir()
    for block in sorted(requested):
        append_request(run, request(block))
    with traincope.run(run, budget=0.005) as recorded:
        for _ in range(STEPS):
            recorded.step()
    return recorded


def steps_with(run: Path, flag: Flag) -> list[int]:
    (rank,) = read_run(run).ranks
    steps = rank.thread("main")[rank.thread("main")["kind"] == Kind.STEP]
    return [int(step) for step in steps["step"][steps["flags"] & flag > 0] if step < STEPS]


def test_a_step_that_has_detail_only_because_of_a_request_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks 0 and 4 are drawn, 3 and 4 requested. Without the request for 3, the first step of 4 would lead in."""
    record(tmp_path / "run", monkeypatch, drawn={0, 4}, requested={3, 4})
    assert steps_with(tmp_path / "run", Flag.DETAILED) == [
        *range(BLOCK_STEPS),
        *range(3 * BLOCK_STEPS + 1, 5 * BLOCK_STEPS),
    ]
    assert steps_with(tmp_path / "run", Flag.REQUESTED) == list(range(3 * BLOCK_STEPS + 1, 4 * BLOCK_STEPS + 1))


def test_the_cost_of_requested_steps_does_not_decide_the_sampling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(tmp_path / "run", monkeypatch, drawn={0, 4}, requested={3, 4})
    assert run._probes is not None
    assert len(run._probes._sampling._detailed_ns) == BLOCK_STEPS
    assert len(run._probes._sampling._light_ns) == sampling.JUDGED_STEPS


def test_each_request_for_a_block_leaves_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "CLOCK_INTERVAL_NS", 0)
    (tmp_path / "run").mkdir()
    for kernels in (False, True):
        append_request(tmp_path / "run", request(3, kernels=kernels))
    with traincope.run(tmp_path / "run") as run:
        for _ in range(STEPS):
            run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    about = {"why": "traincope profile", "first_step": 3 * BLOCK_STEPS + 1, "steps": BLOCK_STEPS - 1}
    assert list(rank.details.values()).count(about) == 2


def test_at_level_0_a_request_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCOPE_LEVEL", "0")
    record(tmp_path / "run", monkeypatch, drawn={0}, requested={3})
    assert steps_with(tmp_path / "run", Flag.DETAILED) == []
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.level == 0
    assert not any("why" in details for details in rank.details.values())
