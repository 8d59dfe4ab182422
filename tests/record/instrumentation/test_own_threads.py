"""Threads of the recorder: real ones, or none."""

import _thread
from pathlib import Path

import pytest

import traincope
from traincope.store import read_run


def test_a_library_that_replaces_threads_gets_no_work_of_the_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gevent lets such work run in the main thread, where what waits in the kernel stops the training."""

    def start(*_: object) -> int:
        pytest.fail("it would run in the main thread")

    monkeypatch.setattr(_thread, "start_new_thread", start)
    with traincope.run(tmp_path / "run", budget=None) as run:
        for _ in range(20):
            run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.ending == "clean"
    assert rank.info.probes["flight_recorder"].startswith("absent: RuntimeError: threads of this process")
