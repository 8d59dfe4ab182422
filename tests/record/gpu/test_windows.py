"""Kernel windows: the same step on every rank, traced by torch. Every other profiler has precedence."""

import json
import re
import threading
from pathlib import Path

import pytest
import torch

import traincope
from traincope.events import Kind
from traincope.record.gpu import windows
from traincope.store import RankRecords, read_run


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "FIRST", 2)
    monkeypatch.setattr(windows, "EVERY", 4)


def train(steps: int) -> None:
    model = torch.nn.Linear(8, 8)
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        traincope.step()


def only_rank(path: Path) -> RankRecords:
    (rank,) = read_run(path).ranks
    return rank


def traced(path: Path) -> dict[str, set[str]]:
    """File -> names of the events in it."""
    traces = sorted(path.rglob("kernels-step-*.json"))
    return {file.name: {event["name"] for event in json.loads(file.read_text())["traceEvents"]} for file in traces}


def test_a_window_records_its_pause_and_leaves_nothing_running(tmp_path: Path) -> None:
    """torch holds the GIL while it writes a trace: another thread would stop as long as the training."""
    with traincope.run(tmp_path / "run", level=3, budget=None):
        train(3)
        assert list(traced(tmp_path / "run")) == [
            "kernels-step-00000002.json"
        ]  # the file is whole at the boundary already
        assert not [thread for thread in threading.enumerate() if "window" in thread.name]
    (window,) = (
        details for details in only_rank(tmp_path / "run").details.values() if "stood_still_seconds" in details
    )
    assert window["step"] == 2
    assert window["stood_still_seconds"] > 0


@pytest.mark.parametrize(
    ("limit", "left_out"),
    [
        ("MAX_STEP_SECONDS", [(2, "the previous step took over 0 s"), (4, "the previous step took over 0 s")]),
        ("MAX_STANDSTILL_SECONDS", [(4, "the previous window paused the training for 0.0 s")]),
    ],
)
def test_a_window_that_would_pause_the_training_too_long_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, left_out: list[tuple[int, str]]
) -> None:
    monkeypatch.setattr(windows, limit, 0.0)
    with traincope.run(tmp_path / "run", level=3, budget=None):
        train(7)
    assert [
        (step, re.sub(r"\d\.\d s", "0.0 s", why)) for step, why in why_left_out(only_rank(tmp_path / "run"))
    ] == left_out


def why_left_out(rank: RankRecords) -> list[tuple[int, str]]:
    records = rank.thread("main")
    events = records[records["kind"] == Kind.EVENT]
    return [
        (rank.details[int(event["group"])]["step"], rank.details[int(event["group"])]["why"])
        for event in events
        if rank.name(int(event["name"])) == "kernel window left out"
    ]


def test_chosen_steps_are_traced_and_no_others(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", level=3, budget=None):
        train(7)
    files = traced(tmp_path / "run")
    assert list(files) == ["kernels-step-00000002.json", "kernels-step-00000004.json"]
    assert all({"aten::addmm", "aten::linear"} <= names for names in files.values())
    assert not torch._C._autograd._profiler_enabled()


def test_a_window_begins_and_ends_with_the_device_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are only queued when a trace ends are missing from it, so the device is waited for before
    and in it.
    """
    waited: list[bool] = []
    monkeypatch.setattr(windows, "_finish_queued", lambda: waited.append(torch.autograd._profiler_enabled()))
    with traincope.run(tmp_path / "run", level=3, budget=None):
        train(6)
    assert waited == [False, True] * 2


@pytest.mark.parametrize(
    ("initialised", "capturing", "waits"), [(True, False, 1), (True, True, 0), (False, False, 0), (False, True, 0)]
)
def test_the_device_is_waited_for_if_it_is_in_use_and_not_capturing(
    monkeypatch: pytest.MonkeyPatch, initialised: bool, capturing: bool, waits: int
) -> None:
    waited: list[None] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(None))
    windows._finish_queued()
    assert len(waited) == waits


def test_at_the_default_level_nothing_is_traced(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", budget=None):
        train(7)
    assert traced(tmp_path / "run") == {}


def test_a_running_profiler_prevents_a_window(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", level=3, budget=None):
        with torch.profiler.profile() as profile:
            train(3)
        train(2)
    assert any(event.key == "aten::addmm" for event in profile.key_averages())
    assert list(traced(tmp_path / "run")) == ["kernels-step-00000004.json"]
    assert why_left_out(only_rank(tmp_path / "run")) == [(2, "another profiler is on")]


def test_a_profiler_that_starts_inside_a_window_gets_the_step(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", level=3, budget=None):
        train(2)
        with torch.profiler.profile() as profile:
            train(1)
    assert any(event.key == "aten::addmm" for event in profile.key_averages())
    assert traced(tmp_path / "run") == {}
    assert why_left_out(only_rank(tmp_path / "run"))[0] == (2, "another profiler started")


def test_under_nsight_nothing_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    with traincope.run(tmp_path / "run", level=3, budget=None):
        train(4)
    assert traced(tmp_path / "run") == {}
    assert why_left_out(only_rank(tmp_path / "run")) == [(step, "another profiler is on") for step in (2, 4)]
