"""Marks on the compute stream of a GPU: CUDA events around waits, phases and steps, and no synchronisation.

On CUDA a wait does not block the host: it makes the compute stream wait. The stall is exactly the difference of two
events, and so is the time that the stream takes from the begin of a phase or step to its end. Events come from a pool.
A thread of ours calls `query()` until both have happened, and only then writes the record.

A query from one thread breaks the CUDA graph that another thread is capturing (pytorch #104487), unless the querying
thread has set the driver's relaxed capture mode. torch's own watchdog does so (#148594), and so does our thread before
its first query. Nothing is recorded on a capturing stream, and the thread rests during a known capture.

Nothing here uses the device before the training has: a context on the wrong GPU costs hundreds of MiB there.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from typing import Any, Protocol

from traincope.events import EMPTY_NS, MAX_LATENCY_NS, NO_PEER, NOT_MARKED, Flag, Kind, Phase
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard
from traincope.record.instrumentation.own_threads import OwnThread
from traincope.record.instrumentation.torch_private import plain_event, raw_stream_reader
from traincope.record.session.environment import current_gpu_is_in_use
from traincope.record.session.recorder import Recorder
from traincope.store.job.process import name_this_thread

POLL_SECONDS = 0.01
STOP_SECONDS = 1.0
"""Longest time that the end of a run waits for the last marks."""
POOL_SIZE = 1_024
"""Maximum number of brackets in flight. Further ones are counted as unmeasured, so that memory stays bounded."""
MAX_FAILURES = 3
"""Number of polls in a row that fail before marking ends: a device that fails so often does not recover."""
ANCHOR_INTERVAL_NS = 10_000_000_000
"""`elapsed_time` is a float32 of milliseconds: after 10 s its last digit is still a microsecond."""
ANCHOR_TOLERANCE_NS = 200_000
"""Maximum uncertainty of an anchor's time on the host's clock."""
ANCHOR_PATIENCE_NS = 20_000_000
"""Maximum time of one poll for an anchor to happen.

Streams share queues of the device; under CUDA_DEVICE_MAX_CONNECTIONS=1 all share a single one. Then an anchor's own
stream is idle, but the anchor happens only after all work queued before it.
"""
ANCHOR_PAUSE_SECONDS = 100e-6
"""Pause between two queries, once the first has failed."""

DRIVER = "libcuda.so.1"
CAPTURE_MODE_RELAXED = 2
"""`CU_STREAM_CAPTURE_MODE_RELAXED` of cuda.h."""
DEFAULT_STREAM = 0
"""Raw handle of the default stream, on every device."""
OTHER_DEVICE = -1
"""Not a handle of any stream. If a process trains on several devices, only the first one is measured."""
MAX_TAG = (1 << 31) - 1
MAX_ISSUES = 256
"""Maximum number of collectives under way whose issue is marked. Without a wait, older ones are forgotten."""
BACKWARD, RECOMPUTE = int(Phase.BACKWARD), int(Phase.RECOMPUTE)


class Issued(Protocol):
    """A collective under way, with the fields that its stall's record needs."""

    @property
    def fields(self) -> tuple[int, int, int, int, int, int, int, int]:
        """name, group, sequence, peer, tag, bytes, flags, window."""

    @property
    def batch(self) -> Sequence["Issued"]:
        """Messages issued after it that the same wait ends, in order."""


class Event(Protocol):
    """The used part of an event with a time."""

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any) -> float: ...


class Device(Protocol):
    """The used part of the accelerator."""

    def in_use(self) -> bool:
        """Return whether the training has its tensors on the current device. Creates no context on it."""

    def make_event(self) -> Event: ...

    def record(self, event: Event, stream: int) -> None:
        """Record an event on this stream, the calling thread's current one."""

    def make_anchor(self) -> Event:
        """Return an event just recorded on a separate, otherwise idle stream."""

    def capturing(self) -> bool:
        """Return whether the current stream is being captured into a graph."""

    def current_stream(self) -> int:
        """Return the raw handle of the calling thread's current stream."""

    def enter_thread(self) -> None:
        """Make the calling thread disturb no capture. Raises OSError or RuntimeError on failure."""


@dataclass(slots=True)
class _Bracket:
    before: Event
    after: Event
    queued_ns: int
    """Time at which the host queued the end."""
    write: Callable[[int, int, int], None]
    """Write the record of the time between the events, given its begin and end in ns, and `queued_ns`."""


@dataclass(slots=True)
class _Interval:
    """A step, phase or pipeline action whose begin is marked."""

    kind: int
    phase: int
    name: int
    step: int
    before: Event
    queued_ns: int
    """Time at which the host queued the mark."""
    schedule: int = 0
    microbatch: int = 0
    stage: int = NO_PEER
    """These three only of an action."""


@dataclass(slots=True)
class _ClockAnchor:
    """A moment that is known on both clocks."""

    event: Event
    at_ns: int


class DeviceMarks:
    """Brackets on the compute stream, resolved off the training thread."""

    def __init__(self, recorder: Recorder, device: Device) -> None:
        self._recorder = recorder
        self._device = device
        self.compute_stream = DEFAULT_STREAM
        """The stream that was current between the last two steps. A wait on another stream delays no computation."""
        self._used = False
        """True if the training used the device at a boundary of steps. Before that nothing may be queried or marked."""
        self._started = False
        self._off = False
        self._free: deque[Event] = deque()
        self._num_events = 0
        self._waiting: deque[_Bracket] = deque()
        self._step: _Interval | None = None
        self._phases: dict[int, _Interval] = {}
        """Marked phases and actions under way, by the identity of a hook's key."""
        self._acted: _Bracket | None = None
        """The latest action, if it has ended. A loss computed after it extends it."""
        self._issues: dict[int, tuple[Issued, Event]] = {}
        """Collectives under way, by identity, with the mark of their issue."""
        self._latency_ns = MAX_LATENCY_NS
        """Shortest time so far from the launch of a mark until it happened."""
        self._capturing = False
        self._anchor: _ClockAnchor | None = None
        self._awaited: Event | None = None
        """The next anchor, which had not happened at the last poll."""
        self.begin_phase = guard(self._begin_phase, every=SAMPLING_INTERVAL)
        """Mark the begin of a phase of the training, given a key, the phase and a name. The key lives until its end."""
        self.end_phase = guard(self._end_phase, every=SAMPLING_INTERVAL)
        """Mark the end of the phase that began with this key."""
        self.begin_action = guard(self._begin_action, every=SAMPLING_INTERVAL)
        """Mark the begin of a pipeline action: key, phase, name, schedule, microbatch, stage."""
        self.end_action = guard(self._end_action, every=SAMPLING_INTERVAL)
        """Mark the end of the action that began with this key."""
        self.extend_action = guard(self._extend_action)
        """Mark the end of the latest action anew."""
        self._stopped = threading.Event()
        self._thread = OwnThread(self._run)

    def stop(self) -> None:
        """Resolve the brackets that are complete now. The others are dropped and counted."""
        self._off = True
        self._stopped.set()
        self._thread.join(STOP_SECONDS)
        self._recorder.stalls_unmeasured += len(self._waiting)
        self._waiting.clear()
        self._phases.clear()
        self._issues.clear()
        self._acted = self._step = None

    def between_steps(self) -> bool:
        """Choose the compute stream, and mark where one step ends and the next begins.

        Returns whether to mark phases too: the training uses the device, and this is a window. Outside of windows the
        marks of steps stay: a host that waits for its device in some steps makes these long and the next ones short.
        """
        if self._off:
            return False
        self._used = self._used or self._device.in_use()
        if self._used:
            self.choose_stream()
            self._mark_step()
        return self._used and self._recorder.detailed

    def _mark_step(self) -> None:
        self._keep_acted()
        crossing, self._phases = self._phases, {}
        for interval in crossing.values():
            self.give_back(interval.before)
        ended, self._step = self._step, None
        self._end(ended)
        self._step = self._begin(int(Kind.STEP), 0, 0)
        if not self._recorder.detailed:
            self._forget_issues()

    def _forget_begun(self) -> None:
        """Forget the begin of the step, and the issues of collectives."""
        begun, self._step = self._step, None
        self.give_back(None if begun is None else begun.before)
        self._forget_issues()

    def _forget_issues(self) -> None:
        for _, event in self._issues.values():
            self.give_back(event)
        self._issues.clear()

    def _begin_phase(self, key: object, phase: int, name: int) -> None:
        if self._recorder.detailed and self._computes_here(phase):
            lost, interval = self._phases.pop(id(key), None), self._begin(int(Kind.PHASE), phase, name)
            if lost is not None:
                self.give_back(lost.before)
            if interval is not None:
                self._phases[id(key)] = interval

    def _end_phase(self, key: object) -> None:
        self._end(self._phases.pop(id(key), None))

    def _computes_here(self, phase: int) -> bool:
        """Return whether the calling thread computes for the training: autograd's thread recomputes for it."""
        if threading.get_ident() == self._recorder.main_thread:
            return True
        return phase == RECOMPUTE and any(each.phase == BACKWARD for each in tuple(self._phases.values()))

    def _begin_action(self, key: object, phase: int, name: int, *of_schedule: int) -> None:
        self._keep_acted()
        if self._recorder.detailed and threading.get_ident() == self._recorder.main_thread:
            interval = self._begin(int(Kind.ACTION), phase, name, *of_schedule)
            if interval is not None:
                self._phases[id(key)] = interval

    def _end_action(self, key: object) -> None:
        interval = self._phases.pop(id(key), None)
        if interval is not None:
            self._acted = self._closed(interval.before, partial(self._write_interval, interval))

    def _extend_action(self) -> None:
        acted, self._acted = self._acted, None
        if acted is not None:
            self.give_back(acted.after)
            self._acted = self._closed(acted.before, acted.write)

    def _keep_acted(self) -> None:
        """Resolve the latest action with the other brackets: nothing extends it any more."""
        acted, self._acted = self._acted, None
        if acted is not None:
            self._waiting.append(acted)

    def _begin(self, kind: int, phase: int, name: int, *of_schedule: int) -> _Interval | None:
        queued_ns, before = monotonic_ns(), self.mark()
        if before is None:
            return None
        return _Interval(kind, phase, name, self._recorder.shared.step, before, queued_ns, *of_schedule)

    def _end(self, interval: _Interval | None) -> None:
        if interval is not None:
            self._bracket(interval.before, partial(self._write_interval, interval))

    def choose_stream(self) -> None:
        """Choose the compute stream: the current stream between two steps."""
        if self._used and not self._off:
            self._capturing = self._device.capturing()
            stream = self.compute_stream if self._capturing else self._device.current_stream()
            if stream not in (OTHER_DEVICE, self.compute_stream):
                self._forget_begun()  # one stream does not pass the marks of another
                self.compute_stream = stream

    def in_capture(self) -> bool:
        """Return whether work queued on the current stream becomes part of a graph instead of running."""
        return self._device.capturing()

    def mark(self) -> Event | None:
        """Record an event on the compute stream now.

        Returns None if another stream is current, if it captures, without a free event, or before the first boundary of
        steps at which the training uses the device.
        """
        if self._off or not self._used:
            return None
        stream = self._device.current_stream()
        if stream != self.compute_stream:
            return None
        self._capturing = self._device.capturing()
        if self._capturing:
            return None
        if not self._started:
            self._started = True
            self._thread.start()
        if self._free:
            event = self._free.popleft()
        elif self._num_events < 2 * POOL_SIZE:
            event = self._device.make_event()
            self._num_events += 1
        else:
            self._recorder.stalls_unmeasured += 1
            return None
        self._device.record(event, stream)
        return event

    def issue(self, issued: Issued) -> None:
        """Mark on the compute stream that a collective is issued now: it starts after the work queued so far."""
        event = self.mark()
        if event is None:
            return
        if len(self._issues) >= MAX_ISSUES:
            self._free.append(self._issues.pop(next(iter(self._issues)))[1])
        self._issues[id(issued)] = (issued, event)

    def close(self, before: Event | None, issued: Issued, *, until_its_end: bool = True) -> None:
        """Close the bracket that began at `before`: its wait is queued on the current stream.

        `until_its_end`: the wait ends with this collective, not with a later one.
        """
        ended = issued, *issued.batch
        issues = [self._issues.pop(id(each), (None, None))[1] for each in ended]
        if before is None or not until_its_end:
            issues = self._given_back(issues)
        if before is not None:
            write = partial(self._write_stalls, ended, issues, self._recorder.shared.step, before)
            if not self._bracket(before, write):
                self._given_back(issues)

    def _given_back(self, events: Sequence[Event | None]) -> list[Event | None]:
        """Return events to the pool. Returns None in place of each."""
        for event in events:
            self.give_back(event)
        return [None] * len(events)

    def _bracket(self, before: Event, write: Callable[[int, int, int], None]) -> bool:
        """Mark the end. Returns False, and gives `before` back, without a mark."""
        bracket = self._closed(before, write)
        if bracket is not None:
            self._waiting.append(bracket)
        return bracket is not None

    def _closed(self, before: Event, write: Callable[[int, int, int], None]) -> _Bracket | None:
        """Mark the end. Returns None, and gives `before` back, without a mark."""
        queued_ns, after = monotonic_ns(), self.mark()
        if after is None:
            self.give_back(before)
            return None
        return _Bracket(before, after, queued_ns, write)

    def give_back(self, before: Event | None) -> None:
        """Return an event to the pool: no wait followed it."""
        if before is not None:
            self._free.append(before)

    def resolve(self) -> int:
        """Write the complete brackets in order. Returns their number."""
        if self._capturing:
            return 0
        self._keep_anchor()
        written = 0
        while self._waiting and self._anchor is not None and self._waiting[0].after.query():
            self._write(self._waiting.popleft(), self._anchor)
            written += 1
        return written

    def _run(self) -> None:
        """Poll until stopped.

        Each poll passes a guard of its own, so that its cost counts in the step in which it runs.
        """
        name_this_thread()
        if not guard(self._enter)():
            self._off = True
            return
        resolve, failures = guard(self.resolve), 0
        while not self._stopped.wait(POLL_SECONDS):
            failures = failures + 1 if resolve() is None else 0
            if failures == MAX_FAILURES:
                self._off = True
                return
        resolve()

    def _enter(self) -> bool:
        try:
            self._device.enter_thread()
        except (OSError, AttributeError, RuntimeError) as error:
            self._recorder.probes["device stalls"] = f"absent: {error}"
            return False
        return True

    def _keep_anchor(self) -> None:
        """Keep the anchor fresh. Its time lies between the last query before it happened and the first after."""
        began_ns = not_yet_ns = monotonic_ns()
        if self._anchor is not None and began_ns - self._anchor.at_ns < ANCHOR_INTERVAL_NS:
            return
        if self._awaited is None or self._awaited.query():  # it happened unseen between two polls
            self._awaited = self._device.make_anchor()
        event, asked_ns = self._awaited, monotonic_ns()
        while not event.query():
            watched_ns, not_yet_ns = asked_ns - began_ns, asked_ns
            if watched_ns > ANCHOR_PATIENCE_NS:
                return
            if watched_ns > ANCHOR_TOLERANCE_NS and self._stopped.wait(ANCHOR_PAUSE_SECONDS):
                return
            asked_ns = monotonic_ns()
        happened_ns, self._awaited = monotonic_ns(), None
        if happened_ns - not_yet_ns <= ANCHOR_TOLERANCE_NS:
            self._anchor = _ClockAnchor(event, (not_yet_ns + happened_ns) // 2)

    def _write(self, bracket: _Bracket, anchor: _ClockAnchor) -> None:
        start_ns = anchor.at_ns + round(anchor.event.elapsed_time(bracket.before) * 1e6)
        end_ns = start_ns + round(bracket.before.elapsed_time(bracket.after) * 1e6)
        self._latency_ns = max(min(self._latency_ns, end_ns - bracket.queued_ns), 0)
        bracket.write(start_ns, end_ns, bracket.queued_ns)
        self._free += (bracket.before, bracket.after)

    def _write_stalls(
        self,
        ended: Sequence[Issued],
        issues: Sequence[Event | None],
        step: int,
        before: Event,
        start_ns: int,
        end_ns: int,
        queued_ns: int,
    ) -> None:
        done = min(end_ns - start_ns, end_ns - queued_ns - self._latency_ns) <= EMPTY_NS
        joined, began_ns = Flag.DEVICE | (Flag.DONE_BEFORE_WAIT if done else 0), start_ns
        for issued, issue in zip(ended, issues, strict=True):
            name, group, sequence, peer, tag, value, flags, window = issued.fields
            since_ns = NOT_MARKED
            if issue is not None:
                since_ns = max(round(issue.elapsed_time(before) * 1e6), 0) + began_ns - start_ns
                self.give_back(issue)
            if flags & Flag.POINT_TO_POINT:
                value = since_ns
            else:
                tag = since_ns if since_ns <= MAX_TAG else NOT_MARKED
            self._recorder.writer().write(
                Kind.STALL, began_ns, end_ns, 0, name, group, sequence, peer, tag, value, flags | joined, window, step
            )
            joined, began_ns = joined | Flag.BATCHED, end_ns

    def _write_interval(self, interval: _Interval, start_ns: int, end_ns: int, queued_ns: int) -> None:
        self._recorder.writer().write(
            interval.kind, start_ns, end_ns, interval.phase, interval.name,
            interval.schedule, interval.microbatch, interval.stage, _as_tag(end_ns - queued_ns),
            max(start_ns - interval.queued_ns, 0), Flag.DEVICE, step=interval.step,
        )  # fmt: skip


def _as_tag(ns: int) -> int:
    return max(min(ns, MAX_TAG), 0)


class CudaDevice:
    """`torch.cuda`, behind the seam that tests use. The device is the current one at the first mark.

    Its events are those of C++: `torch.cuda.Event.record` makes a stream object at every call, which takes longer than
    all else that a mark does, and passes our own hook on it.
    """

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._event = plain_event()
        self._streams: dict[int, Any] = {}
        """Stream of each raw handle that was marked."""
        self._raw_stream = raw_stream_reader()
        self._index: int | None = None
        self._stream: Any = None
        """The stream of the anchors, which must wait for nothing."""

    def in_use(self) -> bool:
        return current_gpu_is_in_use(self._cuda)

    def make_event(self) -> Event:
        event: Event = self._event(enable_timing=True)
        return event

    def record(self, event: Any, stream: int) -> None:
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = self._cuda.current_stream()
        event.record(known)

    def make_anchor(self) -> Event:
        if self._stream is None:
            self._stream = self._cuda.Stream(self._index)
        event: Any = self.make_event()
        event.record(self._stream)
        return event  # type: ignore[no-any-return]

    def capturing(self) -> bool:
        return bool(self._cuda.is_current_stream_capturing())

    def current_stream(self) -> int:
        """Return the current stream. The training has tensors on the device at this point, so its context exists."""
        if self._index is None:
            self._index = self._cuda.current_device()
        if self._cuda.current_device() != self._index:
            return OTHER_DEVICE
        return int(self._raw_stream(self._index))

    def enter_thread(self) -> None:
        """Prepare the thread: it starts on device 0, whatever the training uses, and in the driver's strictest capture
        mode.
        """
        if self._index is not None:
            self._cuda.set_device(self._index)
        answer = relax_captures()
        if answer:
            self.make_anchor()  # creates the device's context in this thread, which the driver may require first
            answer = relax_captures()
        if answer:
            raise RuntimeError(f"the CUDA driver does not let a thread stay out of captures (error {answer})")


def relax_captures() -> int:
    """Make the calling thread disturb no capture. Returns 0 or the driver's error."""
    mode = ctypes.c_int(CAPTURE_MODE_RELAXED)
    return int(ctypes.CDLL(DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
