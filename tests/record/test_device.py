"""Device brackets on a pretended stream: its events happen when the test says so."""

from pathlib import Path

import pytest

from traincope.events import Flag, Kind
from traincope.record import device as devices
from traincope.record.collectives import Issued
from traincope.record.device import DeviceStalls
from traincope.record.groups import KnownGroup
from traincope.record.identity import Identity
from traincope.record.recorder import Recorder


class Clock:
    """The stream's time in ms; the host's, by which anchors are made, is at `host_ns`."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.done_ms = 0.0
        self.is_capturing = False
        self.made = 0


class FakeEvent:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at_ms = -1.0

    def record(self) -> None:
        self.at_ms = self._clock.now_ms

    def query(self) -> bool:
        return self.at_ms <= self._clock.done_ms

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        return end_event.at_ms - self.at_ms


class FakeDevice:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def make_event(self) -> FakeEvent:
        self._clock.made += 1
        return FakeEvent(self._clock)

    def make_anchor(self) -> FakeEvent:
        event = FakeEvent(self._clock)
        event.at_ms = self._clock.done_ms
        return event

    def capturing(self) -> bool:
        return self._clock.is_capturing


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    identity = Identity(rank=0, world_size=1, run_id="test", restarts=0)
    return Recorder(tmp_path, root=tmp_path, identity=identity, disk_budget_bytes=1 << 22)


def issue(recorder: Recorder) -> Issued:
    known = KnownGroup(number=0, key="0", reference=lambda: None, rule="mesh", ranks=(0, 1))  # type: ignore[arg-type]
    return Issued(recorder.main.begin(Kind.COLLECTIVE), (1, 0, 5, -1, 0, 64, 0), known, True)


def device_stalls(recorder: Recorder) -> list[tuple[int, int, int]]:
    """(duration ns, sequence, step) of the device's stalls."""
    from traincope.store import read_run

    recorder.settle(True)
    assert recorder.run is not None
    records = read_run(recorder.run).ranks[0].thread("main")
    stalls = records[(records["kind"] == Kind.STALL) & (records["flags"] & Flag.DEVICE > 0)]
    return [(int(r["end_ns"] - r["start_ns"]), int(r["sequence"]), int(r["step"])) for r in stalls]


def test_a_stall_is_the_difference_of_its_events_once_both_happened(recorder: Recorder) -> None:
    clock = Clock()
    stalls = DeviceStalls(recorder, FakeDevice(clock))
    recorder.shared.step = 4
    clock.now_ms = 1.0
    before = stalls.mark()
    clock.now_ms = 3.5
    stalls.close(before, issue(recorder))
    recorder.shared.step = 5
    clock.done_ms = 2.0
    assert stalls.resolve() == 0
    clock.done_ms = 4.0
    assert stalls.resolve() == 1
    assert device_stalls(recorder) == [(2_500_000, 5, 4)]


def test_events_are_used_again(recorder: Recorder) -> None:
    clock = Clock()
    stalls = DeviceStalls(recorder, FakeDevice(clock))
    for _ in range(50):
        stalls.close(stalls.mark(), issue(recorder))
        stalls.resolve()
    assert clock.made == 2


def test_events_in_flight_are_bounded(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "POOL_SIZE", 4)
    clock = Clock()
    clock.now_ms, clock.done_ms = 1.0, 0.0
    stalls = DeviceStalls(recorder, FakeDevice(clock))
    for _ in range(20):
        stalls.close(stalls.mark(), issue(recorder))
    assert clock.made == 8
    clock.done_ms = 1.0
    assert stalls.resolve() == 4


def test_nothing_is_recorded_or_asked_while_a_graph_is_captured(recorder: Recorder) -> None:
    clock = Clock()
    stalls = DeviceStalls(recorder, FakeDevice(clock))
    stalls.close(stalls.mark(), issue(recorder))
    clock.is_capturing = True
    assert stalls.mark() is None
    assert stalls.resolve() == 0
    clock.is_capturing = False
    stalls.mark()
    assert stalls.resolve() == 1


def test_the_thread_resolves_and_stops(recorder: Recorder) -> None:
    clock = Clock()
    stalls = DeviceStalls(recorder, FakeDevice(clock))
    stalls.start()
    clock.now_ms = clock.done_ms = 2.0
    stalls.close(stalls.mark(), issue(recorder))
    stalls.stop()
    threads = [path.name for path in recorder.directory.glob("thread-*.seg")]
    assert len(threads) == 1
