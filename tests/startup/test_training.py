"""The record of a process that made an optimizer, and then ended without a process group and without a step."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from traincope.record.process import flight
from traincope.record.session.identity import this_host
from traincope.record.session.options import OUT_VARIABLE
from traincope.startup.training import AutomaticRun, _end_with_the_process


def end_after_another_began(run_directory: Path, error: BaseException | None) -> list[str | None]:
    """The endings of this process's records in the run."""
    run = AutomaticRun()
    run.__enter__()
    later = run_directory / "attempt-000" / "rank-00001"
    later.mkdir(parents=True)
    host = this_host()
    card = {"rank": 1, "coords": {}, "host": host.name, "boot_id": host.boot_id, "pid": 1, "ending": None}
    later.joinpath("rank.json").write_text(json.dumps(card | {"started_wall_ns": time.time_ns()}))
    run.end_with_the_process(error)
    return [json.loads(path.read_text())["ending"] for path in run_directory.rglob("rank-00000/rank.json")]


@pytest.fixture(autouse=True)
def _run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OUT_VARIABLE, str(tmp_path))
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


def test_a_process_that_prepared_the_ranks_leaves_no_record(tmp_path: Path) -> None:
    assert end_after_another_began(tmp_path, None) == []


def test_a_process_that_fails_keeps_its_record_and_its_exception(tmp_path: Path) -> None:
    assert end_after_another_began(tmp_path, ValueError("no such layer")) == ["ValueError"]


def test_a_rank_of_a_launcher_keeps_its_record_after_sys_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At exit its SystemExit is not visible any more."""
    monkeypatch.setenv("RANK", "0")
    assert end_after_another_began(tmp_path, None) == ["clean"]


def test_what_a_signal_handler_raises_while_an_error_is_recorded_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's handler says that a loader's worker was killed, often just after the main thread lost its connection."""

    def worker_killed(*_: object) -> None:
        raise RuntimeError("worker is killed")

    def write_last() -> None:
        if signals:
            os.kill(os.getpid(), signals.pop())
        flight.write_last()

    shown: list[type[BaseException]] = []
    signals = [signal.SIGUSR1]
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: shown.append(kind))
    monkeypatch.setattr("traincope.record.run.write_last", write_last)
    before = signal.signal(signal.SIGUSR1, worker_killed)
    try:
        run = AutomaticRun()
        run.__enter__()
        _end_with_the_process(run)
        with pytest.raises(RuntimeError, match="worker is killed"):
            sys.excepthook(ConnectionError, ConnectionError("reset by peer"), None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert shown == [ConnectionError]
    (card,), (details,) = tmp_path.rglob("rank.json"), tmp_path.rglob("details.jsonl")
    assert json.loads(card.read_text())["ending"] == "RuntimeError"
    recorded = details.read_text()
    assert "worker is killed" in recorded
    assert "reset by peer" in recorded


def test_a_training_that_deleted_its_excepthook_is_recorded_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself says that the hook is missing."""
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr("traincope.startup.training.atexit.register", registered.append)
    monkeypatch.delattr(sys, "excepthook")
    run = AutomaticRun()
    run.__enter__()
    _end_with_the_process(run)
    assert not hasattr(sys, "excepthook")
    registered[-1]()
    (card,) = tmp_path.rglob("rank.json")
    assert json.loads(card.read_text())["ending"] == "clean"
