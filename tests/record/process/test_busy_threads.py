"""Other Python threads of a rank that compute."""

import threading
import time
from pathlib import Path

import pytest

import traincope
from traincope.events import BUSY_THREAD, Kind
from traincope.record.process import busy_threads
from traincope.record.session import recorder
from traincope.store import read_run
from traincope.store.layout import DETAILS_FILE

SECONDS, AT_MOST = 0.4, 30.0


class Saver:
    def __init__(self) -> None:
        self.done = threading.Event()

    def merge(self) -> None:
        while not self.done.is_set():
            sum(range(1_000))

    def wait(self) -> None:
        self.done.wait()


def recorded(run: Path, patch: pytest.MonkeyPatch, function: str) -> list[dict[str, object]]:
    """Details of the busy threads while a thread runs this function of a `Saver`, and the training thread sleeps."""
    patch.setattr(recorder, "CLOCK_INTERVAL_NS", 0)
    patch.setattr(busy_threads, "INTERVAL_NS", 50_000_000)
    saver = Saver()
    thread = threading.Thread(target=getattr(saver, function), name="saver")
    with traincope.run(run, budget=None, agent=False) as training:
        thread.start()
        began = time.monotonic()
        while time.monotonic() < began + (AT_MOST if function == "merge" else SECONDS):
            time.sleep(0.01)
            training.step()
            if training.place is not None and (training.place.directory / DETAILS_FILE).read_text():
                break  # on a busy machine, it takes longer
        saver.done.set()
        thread.join()
    (rank,) = read_run(run).ranks
    events = rank.thread("main")
    events = events[events["kind"] == Kind.EVENT]
    return [rank.details[int(event["group"])] for event in events if rank.name(int(event["name"])) == BUSY_THREAD]


def test_a_thread_that_computes_is_named_with_its_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(tmp_path / "run", monkeypatch, "merge")
    assert {(each["thread"], each["runs"]) for each in found} == {("saver", "Saver.merge")}
    assert all(0 < each["busy_ns"] <= 1.1 * each["of_ns"] for each in found)  # type: ignore[operator]


def test_a_thread_that_waits_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorded(tmp_path / "run", monkeypatch, "wait") == []
