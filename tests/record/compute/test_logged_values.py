"""Values on their way from a simulated GPU: each is written once it has arrived, or counted as dropped."""

import struct
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest

import traincope
from traincope.events import Kind
from traincope.record.compute import logged_values
from traincope.record.compute.logged_values import Scalars
from traincope.store import read_run


class Stream:
    """A copy that arrives when the test says so, or that raises at every query."""

    def __init__(self) -> None:
        self.queued = self.done = 0
        self.broken = False

    def arrival(self) -> "Arrival":
        self.queued += 1
        return Arrival(self, self.queued)


class Arrival:
    def __init__(self, stream: Stream, place: int) -> None:
        self._stream, self._place = stream, place

    def query(self) -> bool:
        if self._stream.broken:
            raise RuntimeError("device-side assert triggered")
        return self._place <= self._stream.done


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream()

    def fetch(self: Scalars, number: int, value: Any, *, at_ns: int) -> None:
        self._follow(logged_values._Copy(number, self._recorder.shared.step, at_ns, float(value), stream.arrival()))

    monkeypatch.setattr(Scalars, "_fetch", fetch)
    monkeypatch.setattr(logged_values, "_is_capturing", lambda: False)
    return stream


def train(out: Path, stream: Stream, *, done: int, broken: bool = False) -> None:
    """Log five values, one per step. The last ones are under way when the run ends."""
    with traincope.run(out) as run:
        run.step()
        assert run._scalars is not None
        number = run._recorder.names.intern("loss")  # type: ignore[union-attr]
        for value in range(5):
            run._scalars._fetch(number, float(value), at_ns=monotonic_ns())
            run.step()
        stream.done, stream.broken = done, broken


def written(out: Path) -> tuple[list[float], int]:
    """Return the values, and the recorder's number of dropped values."""
    (rank,) = read_run(out).ranks
    main = rank.thread("main")
    words = main["value"][main["kind"] == Kind.SCALAR].tolist()
    return [struct.unpack("<d", struct.pack("<q", word))[0] for word in words], rank.info.recorder["values_left_out"]


def test_values_that_arrive_after_the_last_step_are_written_at_the_end(tmp_path: Path, stream: Stream) -> None:
    train(tmp_path, stream, done=5)
    assert written(tmp_path) == ([0.0, 1.0, 2.0, 3.0, 4.0], 0)


def test_values_that_have_not_arrived_at_the_end_are_counted(tmp_path: Path, stream: Stream) -> None:
    train(tmp_path, stream, done=2)
    assert written(tmp_path) == ([0.0, 1.0], 3)


def test_a_broken_device_loses_its_values_but_not_the_end_of_the_run(tmp_path: Path, stream: Stream) -> None:
    train(tmp_path, stream, done=5, broken=True)
    assert written(tmp_path) == ([], 5)
    assert read_run(tmp_path).ranks[0].info.ending == "clean"


def test_values_above_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged_values, "MAX_UNDER_WAY", 0)
    with traincope.run(tmp_path) as run:
        run.step()
        assert run._scalars is not None
        run._scalars._fetch(1, 0.5, at_ns=monotonic_ns())
        run.step()
    assert written(tmp_path) == ([], 1)
