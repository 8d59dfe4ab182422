"""Device stalls on a simulated stream, whose events happen when the test says so."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic_ns, thread_time_ns
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

import traincope
from traincope.events import NOT_MARKED, OPEN, Flag, Kind
from traincope.record.communication.groups import KnownGroup
from traincope.record.communication.pending import Issued, Pending
from traincope.record.communication.streams import Streams
from traincope.record.compute.phases import Phases
from traincope.record.compute.pipeline import PipelineActions
from traincope.record.gpu import device as devices
from traincope.record.gpu.device import DeviceMarks
from traincope.record.instrumentation import guard as guarding
from traincope.record.instrumentation.guard import meter
from traincope.record.session.identity import Identity
from traincope.record.session.recorder import Recorder


class Clock:
    """The stream's time in ms. The host's time, which anchors use, is at `host_ns`."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.done_ms = 0.0
        self.is_capturing = False
        self.created = 0
        self.stream = 0
        self.strict = False


class FakeEvent:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at_ms = -1.0

    def query(self) -> bool:
        return self.at_ms <= self._clock.done_ms

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        return end_event.at_ms - self.at_ms


class FakeDevice:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.anchor_ms: float | None = None
        """The time when an anchor happens. None: at once."""
        self.is_in_use = True

    def in_use(self) -> bool:
        return self.is_in_use

    def make_event(self) -> FakeEvent:
        self._clock.created += 1
        return FakeEvent(self._clock)

    def record(self, event: FakeEvent, stream: int) -> None:
        assert stream == self._clock.stream
        event.at_ms = self._clock.now_ms

    def make_anchor(self) -> FakeEvent:
        event = FakeEvent(self._clock)
        event.at_ms = self._clock.done_ms if self.anchor_ms is None else self.anchor_ms
        return event

    def capturing(self) -> bool:
        return self._clock.is_capturing

    def current_stream(self) -> int:
        return self._clock.stream

    def enter_thread(self) -> None:
        if self._clock.strict:
            raise RuntimeError("the driver says no")


class HostClock:
    """The host's time in ns, which advances by a microsecond per reading.

    On the real clock a pause of the machine between two readings makes an anchor too uncertain to be used.
    """

    def __init__(self) -> None:
        self.now_ns = monotonic_ns()

    def __call__(self) -> int:
        self.now_ns += 1_000
        return self.now_ns


MakeStalls = Callable[[FakeDevice], DeviceMarks]


@pytest.fixture(autouse=True)
def _sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread polls only once, when it is stopped, however long the machine pauses. Until then the test polls."""
    monkeypatch.setattr(devices, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(devices, "STOP_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    clock = HostClock()
    monkeypatch.setattr(devices, "monotonic_ns", clock)
    return clock


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    identity = Identity(rank=0, world_size=1, run_id="test", restarts=0)
    return Recorder(tmp_path, root=tmp_path, identity=identity, disk_budget_bytes=1 << 22)


@pytest.fixture
def stalls_on(recorder: Recorder) -> Iterator[MakeStalls]:
    """Create device stalls in a step, whose begin holds one event. Their threads, which hold the recorder, end with the
    test.
    """
    created: list[DeviceMarks] = []

    def make(device: FakeDevice) -> DeviceMarks:
        created.append(DeviceMarks(recorder, device))
        created[-1].between_steps()
        return created[-1]

    yield make
    for stalls in created:
        stalls.stop()


def issue(recorder: Recorder) -> Issued:
    known = KnownGroup(number=0, key="0", axis="dp", reference=lambda: None, rule="mesh", ranks=(0, 1))  # type: ignore[arg-type]
    return Issued(recorder.main.begin(Kind.COLLECTIVE), (1, 0, 5, -1, 0, 64, 0, 0), known, True)


def device_records(recorder: Recorder) -> list[Any]:
    from traincope.store import read_run

    recorder.settle(True)
    assert recorder.run is not None
    rank = read_run(recorder.run).ranks[0]
    records = [record for thread in rank.threads for record in rank.thread(thread)]
    return [record for record in records if record["flags"] & Flag.DEVICE]


def device_stalls(recorder: Recorder) -> list[tuple[int, int, int]]:
    """Return (duration ns, sequence, step) of the device's stalls."""
    stalls = [record for record in device_records(recorder) if record["kind"] == Kind.STALL]
    return [(int(r["end_ns"] - r["start_ns"]), int(r["sequence"]), int(r["step"])) for r in stalls]


def test_a_stall_is_the_difference_of_its_events_once_both_happened(recorder: Recorder, stalls_on: MakeStalls) -> None:
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
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


def test_events_are_reused(recorder: Recorder, stalls_on: MakeStalls) -> None:
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    for _ in range(50):
        stalls.close(stalls.mark(), issue(recorder))
        stalls.resolve()
    assert clock.created == 1 + 2


def test_events_in_flight_are_bounded(
    recorder: Recorder, stalls_on: MakeStalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "POOL_SIZE", 4)
    clock = Clock()
    clock.now_ms, clock.done_ms = 1.0, 0.0
    stalls = stalls_on(FakeDevice(clock))
    for _ in range(20):
        stalls.close(stalls.mark(), issue(recorder))
    assert clock.created == 1 + 7
    assert recorder.stalls_unmeasured == 17
    clock.done_ms = 1.0
    assert stalls.resolve() == 3


def test_unfinished_stalls_at_the_end_are_counted(recorder: Recorder, stalls_on: MakeStalls) -> None:
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    for done_ms in (1.0, 2.0, 3.0):
        clock.now_ms = done_ms
        stalls.close(stalls.mark(), issue(recorder))
    clock.done_ms = 1.0
    stalls.stop()
    assert (len(device_stalls(recorder)), recorder.stalls_unmeasured) == (1, 2)


def test_nothing_is_recorded_or_queried_during_a_capture(recorder: Recorder, stalls_on: MakeStalls) -> None:
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    stalls.close(stalls.mark(), issue(recorder))
    clock.is_capturing = True
    assert stalls.mark() is None
    assert stalls.resolve() == 0
    clock.is_capturing = False
    stalls.mark()
    assert stalls.resolve() == 1


def test_the_thread_resolves_and_stops(recorder: Recorder, stalls_on: MakeStalls) -> None:
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    clock.now_ms = clock.done_ms = 2.0
    stalls.close(stalls.mark(), issue(recorder))
    stalls.stop()
    threads = [path.name for path in recorder.directory.glob("thread-*.seg")]
    assert len(threads) == 1


def test_the_threads_cost_is_known_while_it_runs(monkeypatch: pytest.MonkeyPatch, stalls_on: MakeStalls) -> None:
    """Each poll counts by itself: two have begun, so the first has been counted."""
    monkeypatch.setattr(devices, "POLL_SECONDS", 0.001)
    looks = threading.Semaphore(0)

    def look_for_a_millisecond(_: DeviceMarks) -> int:
        looks.release()
        until = thread_time_ns() + 1_000_000
        while thread_time_ns() < until:
            pass
        return 0

    monkeypatch.setattr(DeviceMarks, "resolve", look_for_a_millisecond)
    before_ns = meter.own_ns
    stalls_on(FakeDevice(Clock()))
    assert looks.acquire(timeout=90)
    assert looks.acquire(timeout=90)
    assert meter.own_ns - before_ns >= 900_000


def test_a_wait_of_another_stream_is_a_stall_only_if_that_stream_computes(stalls_on: MakeStalls) -> None:
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    stalls.give_back(stalls.mark())
    clock.stream = 7
    assert stalls.mark() is None
    stalls.choose_stream()
    assert stalls.mark() is not None
    stalls.stop()


def test_a_training_that_never_computes_on_the_default_stream_has_stalls_too(stalls_on: MakeStalls) -> None:
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    clock.stream = 7
    assert stalls.mark() is None
    stalls.choose_stream()
    assert stalls.mark() is not None
    stalls.stop()


def test_a_thread_that_would_break_captures_queries_nothing_and_reports_it(
    recorder: Recorder, stalls_on: MakeStalls
) -> None:
    clock = Clock()
    clock.strict = True
    stalls = stalls_on(FakeDevice(clock))
    stalls.close(stalls.mark(), issue(recorder))
    stalls.stop()
    assert device_stalls(recorder) == []
    assert recorder.probes["device stalls"] == "absent: the driver says no"
    assert stalls.mark() is None


def test_a_busy_anchor_stream_delays_the_records_without_spinning(recorder: Recorder, stalls_on: MakeStalls) -> None:
    """An anchor whose event has not happened within its tolerance is retried at the next poll."""
    clock = Clock()
    device = FakeDevice(clock)
    device.anchor_ms = 5.0
    stalls = stalls_on(device)
    stalls.close(stalls.mark(), issue(recorder))
    assert stalls.resolve() == 0
    clock.done_ms = 6.0
    assert stalls.resolve() == 1
    stalls.stop()


class LateEvent(FakeEvent):
    """An event that happens 5 ms of the host's time after its creation."""

    LATE_NS = 5_000_000

    def __init__(self, clock: Clock, host: HostClock) -> None:
        super().__init__(clock)
        self._host = host
        self.at_ms, self.happens_ns = 0.0, host() + self.LATE_NS

    def query(self) -> bool:
        return self._host() >= self.happens_ns


def test_an_anchor_in_a_shared_queue_is_polled_until_it_happens(
    recorder: Recorder, stalls_on: MakeStalls, host: HostClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under CUDA_DEVICE_MAX_CONNECTIONS=1 an anchor happens only after all queued work."""
    clock, anchors = Clock(), list[LateEvent]()
    device = FakeDevice(clock)
    monkeypatch.setattr(device, "make_anchor", lambda: anchors.append(LateEvent(clock, host)) or anchors[-1])
    stalls = stalls_on(device)
    stalls.close(stalls.mark(), issue(recorder))
    assert stalls.resolve() == 1
    recorder.settle(True)
    (rank,) = traincope.open_run(recorder.run).run.ranks  # type: ignore[arg-type]
    (start_ns,) = (
        int(r["start_ns"]) for thread in rank.threads for r in rank.thread(thread) if r["flags"] & Flag.DEVICE
    )
    assert abs(start_ns - anchors[-1].happens_ns) <= devices.ANCHOR_TOLERANCE_NS


class Event:
    """The part of `torch.cuda.Event` that streams wait by."""

    def record(self, stream: object = None) -> None: ...

    def wait(self, stream: object = None) -> None: ...


class Waiting:
    """The hooks on waits and collectives, reduced to what `Streams` needs."""

    def __init__(self, device: DeviceMarks | None) -> None:
        self.device = device
        self.on_device: object = None
        self.pending = Pending()


@pytest.fixture
def streams(
    recorder: Recorder, stalls_on: MakeStalls, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Streams, DeviceMarks, Clock]]:
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: clock.stream, raising=False)
    monkeypatch.setattr(dist.ProcessGroup, "_end_coalescing", lambda _, work: work)
    hook = Streams(Waiting(None), Waiting(stalls))  # type: ignore[arg-type]
    before = dict(vars(Event))
    hook.install(recorder)
    yield hook, stalls, clock
    hook.remove()
    assert dict(vars(Event)) == before
    stalls.stop()


def test_a_synchronous_collective_on_the_compute_stream_is_itself_the_stall(
    recorder: Recorder, streams: tuple[Streams, DeviceMarks, Clock]
) -> None:
    """The stall lasts from 1 ms, when its call queues it, to 4 ms, when the work queued after it begins."""
    hook, stalls, clock = streams
    issued = issue(recorder)
    clock.now_ms = 1.0
    hook.began(issued)
    clock.now_ms = 4.0
    hook.returned(issued, on_current_stream=True)
    clock.done_ms = 4.0
    stalls.stop()
    assert [duration for duration, _, _ in device_stalls(recorder)] == [3_000_000]


class Work:
    """The work of a batch."""


def message(recorder: Recorder, *, sequence: int) -> Issued:
    known = issue(recorder).known
    fields = (1, 0, sequence, 1, 7, 64, int(Flag.POINT_TO_POINT), 0)
    return Issued(recorder.main.begin(Kind.COLLECTIVE), fields, known, True)


def test_the_wait_for_a_batch_ends_all_its_messages(
    recorder: Recorder, streams: tuple[Streams, DeviceMarks, Clock]
) -> None:
    """Issued at 1 and 2 ms, waited for from 4 to 9 ms. On NCCL only the end of a batch returns a work."""
    hook, stalls, clock = streams
    for sequence, at_ms in ((3, 1.0), (5, 2.0)):
        clock.now_ms, each = at_ms, message(recorder, sequence=sequence)
        hook.began(each)
        hook.returned(each, on_current_stream=True)
    work = Work()
    assert dist.ProcessGroup._end_coalescing(None, work) is work  # type: ignore[arg-type]
    clock.now_ms = 4.0
    before, issued = stalls.mark(), hook._collectives.pending.take_work(work)
    assert issued is not None
    clock.now_ms = clock.done_ms = 9.0
    stalls.close(before, issued)
    stalls.stop()
    first, second = (record for record in device_records(recorder) if record["kind"] == Kind.STALL)
    assert (first["end_ns"] - first["start_ns"], second["end_ns"] - second["start_ns"]) == (5_000_000, 0)
    assert first["end_ns"] == second["end_ns"]
    for record, sequence, at_ms in ((first, 3, 1), (second, 5, 2)):
        issued_ns = record["start_ns"] - record["value"]
        assert (record["sequence"], record["tag"]) == (sequence, 7)
        assert first["start_ns"] - issued_ns == (4 - at_ms) * 1_000_000
    assert [bool(record["flags"] & Flag.BATCHED) for record in (first, second)] == [False, True]


def test_a_batch_without_a_work_leaves_no_events_behind(
    recorder: Recorder, streams: tuple[Streams, DeviceMarks, Clock]
) -> None:
    hook, _, clock = streams
    for _ in range(50):
        each = message(recorder, sequence=0)
        hook.began(each)
        hook.returned(each, on_current_stream=True)
        dist.ProcessGroup._end_coalescing(None, None)  # type: ignore[arg-type]
    assert clock.created == 1 + 1


def test_a_loss_extends_the_action_before_it(recorder: Recorder, stalls_on: MakeStalls) -> None:
    """F from 1 to 3 ms, its loss until 4 ms; B from 6 to 8 ms."""
    recorder.detailed = True
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    for microbatch, (begin_ms, end_ms, loss_ms) in enumerate(((1.0, 3.0, 4.0), (6.0, 8.0, None))):
        key = object()
        clock.now_ms = begin_ms
        stalls.begin_action(key, 0, 2, 9, microbatch, 5)
        clock.now_ms = end_ms
        stalls.end_action(key)
        if loss_ms is not None:
            clock.now_ms = loss_ms
            stalls.extend_action()
    clock.done_ms = 9.0
    stalls.between_steps()
    stalls.stop()
    actions = [record for record in device_records(recorder) if record["kind"] == Kind.ACTION]
    assert [int(r["end_ns"] - r["start_ns"]) for r in actions] == [3_000_000, 2_000_000]
    assert [(r["name"], r["group"], r["sequence"], r["peer"]) for r in actions] == [(2, 9, 0, 5), (2, 9, 1, 5)]
    assert clock.created == 7  # four for the actions, three for begins and ends of steps: the first end is used again


class Timed(torch.nn.Linear):
    """A stage whose forward takes 2 ms of the stream."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(4, 4)
        self._clock = clock

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._clock.now_ms += 2.0
        return super().forward(input)


def test_every_action_of_a_schedule_of_torch_is_marked(recorder: Recorder, stalls_on: MakeStalls) -> None:
    """Two stages on one rank send no messages. A forward takes 2 ms, a loss 5 ms more, and a backward no time."""
    recorder.detailed, clock = True, Clock()
    phases = Phases()
    phases.device = stalls = stalls_on(FakeDevice(clock))
    hook = PipelineActions(phases)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        stages = [PipelineStage(Timed(clock), number, 2, torch.device("cpu")) for number in range(2)]

        def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            clock.now_ms += 5.0
            return (output - target).square().mean()

        schedule = ScheduleInterleaved1F1B(stages, 2, loss_fn=loss)  # type: ignore[arg-type]
        schedule.step(torch.zeros(4, 4), target=torch.zeros(4, 4))
        hook.install(recorder)
        schedule.step(torch.zeros(4, 4), target=torch.zeros(4, 4))
    finally:
        hook.remove()
        dist.destroy_process_group()
    clock.done_ms = clock.now_ms
    stalls.between_steps()
    stalls.stop()
    actions = [record for record in device_records(recorder) if record["kind"] == Kind.ACTION]
    kinds = {recorder.names.intern(kind): kind for kind in "FB"}
    ran = {(kinds[r["name"]], int(r["peer"]), int(r["sequence"])): int(r["end_ns"] - r["start_ns"]) for r in actions}
    assert ran == {
        (kind, stage, microbatch): {"F": (2 + 5 * stage) * 1_000_000, "B": 0}[kind]
        for kind in "FB"
        for stage in range(2)
        for microbatch in range(2)
    }


def test_fsdp_waits_by_an_event_for_a_collective_of_another_stream(
    recorder: Recorder, streams: tuple[Streams, DeviceMarks, Clock]
) -> None:
    """A collective issued and recorded on stream 7. The compute stream waits for it from 2 to 5 ms, once."""
    hook, stalls, clock = streams
    stalls.give_back(stalls.mark())
    issued, gathered = issue(recorder), Event()
    clock.stream = 7
    hook.began(issued)
    hook.returned(issued, on_current_stream=True)
    gathered.record(SimpleNamespace(cuda_stream=7))
    Event().record(SimpleNamespace(cuda_stream=9))
    gathered.wait(SimpleNamespace(cuda_stream=9))
    clock.stream, clock.now_ms = 0, 2.0
    slow = monkeypatched_wait(clock, until_ms=5.0)
    slow(hook, gathered)
    gathered.wait()
    clock.done_ms = 5.0
    stalls.stop()
    assert [duration for duration, _, _ in device_stalls(recorder)] == [3_000_000]


def test_a_captured_collective_causes_no_stall(recorder: Recorder, streams: tuple[Streams, DeviceMarks, Clock]) -> None:
    """Every capture is on a stream of its own. Later work on that stream is not this collective."""
    hook, stalls, clock = streams
    stalls.give_back(stalls.mark())
    issued, later = issue(recorder), Event()
    clock.stream, clock.is_capturing = 7, True
    hook.began(issued)
    hook.returned(issued, on_current_stream=True)
    clock.stream, clock.is_capturing = 0, False
    later.record(SimpleNamespace(cuda_stream=7))
    later.wait()
    clock.done_ms = 1.0
    stalls.stop()
    assert device_stalls(recorder) == []


def test_the_compute_stream_does_not_wait_for_itself(
    recorder: Recorder, streams: tuple[Streams, DeviceMarks, Clock]
) -> None:
    hook, stalls, clock = streams
    clock.stream = 7
    issued, later = issue(recorder), Event()
    hook.began(issued)
    hook.returned(issued, on_current_stream=True)
    stalls.choose_stream()
    later.record()
    later.wait()
    clock.done_ms = 1.0
    stalls.stop()
    assert device_stalls(recorder) == []


def test_an_event_on_a_device_generic_stream_is_understood(
    recorder: Recorder, streams: tuple[Streams, DeviceMarks, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torch.Stream` (torch.accelerator's) has no `cuda_stream`. torch 2.13 exposes its handle, older
    versions do not.
    """
    monkeypatch.setattr(guarding, "failures", {})
    hook, stalls, clock = streams
    stalls.give_back(stalls.mark())
    issued, gathered = issue(recorder), Event()
    clock.stream = 7
    hook.began(issued)
    hook.returned(issued, on_current_stream=True)
    clock.stream = 0
    Event().record(SimpleNamespace())
    gathered.record(SimpleNamespace(native_handle=7))
    gathered.wait(SimpleNamespace())
    gathered.wait(SimpleNamespace(native_handle=0))
    clock.done_ms = 1.0
    stalls.stop()
    assert guarding.failures == {}
    assert len(device_stalls(recorder)) == 1


def monkeypatched_wait(clock: Clock, *, until_ms: float) -> Callable[[Streams, Event], None]:
    """Run the hooked wait, around an original that ends at `until_ms` of the stream."""

    def original(_event: Event, _stream: object) -> None:
        clock.now_ms = until_ms

    return lambda hook, event: hook._around_wait(original)(event)


def test_a_collective_without_a_work_ends_at_its_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL returns a null work for a synchronous call (torch 2.8+): nothing is remembered, and nothing fails."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with traincope.run(tmp_path / "run") as run:
            monkeypatch.setattr(dist.Work, "unbox", staticmethod(lambda _: None))
            hooks = {hook.name: hook for hook in run._probes.on}  # type: ignore[union-attr]
            hooks["collectives"].remove()
            hooks["collectives"].install(run._recorder)  # type: ignore[arg-type]
            dist.all_reduce(torch.ones(2))
            assert not hooks["collectives"].pending.by_work  # type: ignore[attr-defined]
            assert guarding.failures == {}
        (rank,) = traincope.open_run(tmp_path / "run").ranks
        assert (rank.of_kind(Kind.COLLECTIVE)["end_ns"] != OPEN).all()
    finally:
        dist.destroy_process_group()


def test_a_stall_tells_when_the_compute_stream_reached_the_issue_of_its_collective(
    recorder: Recorder, stalls_on: MakeStalls
) -> None:
    """Issued at 1 ms, awaited from 3 to 4.5 ms. The wait for the next one lasts until a later one ends."""
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    issued, other = issue(recorder), issue(recorder)
    for now_ms, mark in ((1.0, lambda: stalls.issue(issued)), (2.0, lambda: stalls.issue(other))):
        clock.now_ms = now_ms
        mark()
    clock.now_ms = 3.0
    before = stalls.mark()
    clock.now_ms = 4.5
    stalls.close(before, issued)
    stalls.close(stalls.mark(), other, until_its_end=False)
    stalls.close(stalls.mark(), issue(recorder))
    clock.done_ms = 10.0
    stalls.resolve()
    assert [int(record["tag"]) for record in device_records(recorder)] == [2_000_000, NOT_MARKED, NOT_MARKED]


def test_issues_of_collectives_without_a_wait_are_forgotten(
    recorder: Recorder, stalls_on: MakeStalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events of the forgotten ones are used again."""
    monkeypatch.setattr(devices, "MAX_ISSUES", 3)
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    for _ in range(100):
        stalls.issue(issue(recorder))
    assert clock.created == 1 + 4


def test_the_issue_of_a_stall_without_an_end_is_used_again(
    recorder: Recorder, stalls_on: MakeStalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 4 events are in flight at each end: it has no mark, and the stall is not measured."""
    monkeypatch.setattr(devices, "POOL_SIZE", 2)
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    stalls._forget_begun()
    for _ in range(3):
        held, issued = (stalls.mark(), stalls.mark()), issue(recorder)
        stalls.issue(issued)
        stalls.close(stalls.mark(), issued)
        for event in held:
            stalls.give_back(event)
    assert [stalls.mark() is not None for _ in range(5)] == [True, True, True, True, False]
    assert recorder.stalls_unmeasured == 4


def test_a_step_that_begins_and_ends_on_different_streams_has_no_marks(
    recorder: Recorder, stalls_on: MakeStalls
) -> None:
    """As when the last warm-up step before a capture ran on a stream of its own. The next step is measured."""
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    recorder.detailed = True
    for number, stream in enumerate((7, 7, 0, 0)):
        recorder.shared.step, clock.stream = number, stream
        clock.now_ms += 1.0
        stalls.between_steps()
    clock.done_ms = 10.0
    stalls.resolve()
    steps = [record for record in device_records(recorder) if record["kind"] == Kind.STEP]
    assert [int(record["step"]) for record in steps] == [0, 2]


def test_a_device_without_the_trainings_tensors_is_never_marked(recorder: Recorder, stalls_on: MakeStalls) -> None:
    """A collective of "cuda:1" is issued while device 0 is current, as without `torch.cuda.set_device`."""
    clock = Clock()
    device = FakeDevice(clock)
    device.is_in_use = False
    stalls = stalls_on(device)
    stalls.issue(issue(recorder))
    assert not stalls.between_steps()
    assert stalls.mark() is None
    assert clock.created == 0
    device.is_in_use = True
    assert stalls.mark() is None
    stalls.between_steps()
    assert stalls.mark() is not None


def test_a_boundary_of_steps_on_another_device_marks_nothing_there(stalls_on: MakeStalls) -> None:
    """Events of two devices have no common clock. The first device stays the measured one."""
    clock = Clock()
    stalls = stalls_on(FakeDevice(clock))
    stalls.between_steps()
    created, clock.stream = clock.created, devices.OTHER_DEVICE
    stalls.between_steps()
    assert stalls.mark() is None
    assert clock.created == created
    clock.stream = stalls.compute_stream
    assert stalls.mark() is not None


def test_a_clock_that_is_ahead_of_its_gpu_makes_no_negative_run_ahead(
    recorder: Recorder, stalls_on: MakeStalls
) -> None:
    """A record with a negative value would not be read: the clocks are tied to 0.1 ms only."""
    stalls = stalls_on(FakeDevice(Clock()))
    interval = devices._Interval(int(Kind.STEP), 0, 0, 4, FakeEvent(Clock()), queued_ns=2_000)
    stalls._write_interval(interval, 1_000, 5_000, 6_000)
    (step,) = device_records(recorder)
    assert (int(step["value"]), int(step["tag"]), int(step["step"])) == (0, 0, 4)
