"""Compute when everything in a program happens.

Streams run their works in order, each after its launch, the work before it and the events it waits for. Streams do not
slow each other. The kernels of a collective end together, one wire time after the last of them has started. Hosts wait
only in calls that synchronize. A program is therefore a graph of maxima and sums: this file resolves it, and needs no
queue of events.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.virtual_gpu.actions import (
    Action,
    Clock,
    Launch,
    Meaning,
    OnThread,
    Program,
    Range,
    RecordEvent,
    Sleep,
    Synchronize,
    WaitEvent,
    Work,
)

MAIN = "main"


class Deadlock(Exception):
    """Every host waits for work that no rank will launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnHost:
    """An interval of a host thread."""

    begin_ns: int
    end_ns: int
    thread: str
    order: int
    """Counts the ranges and calls of the rank as they begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(OnHost):
    """A host range."""

    action: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(OnHost):
    """A runtime call, and the ranges that were open on its thread, outermost first."""

    name: str
    within: tuple[int, ...]
    """`order` of each of these ranges."""
    meanings: tuple[Meaning, ...]
    sync: bool = False

    @property
    def correlation(self) -> int:
        return 1_000 + self.order


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A work with its times."""

    work: Work
    start_ns: int
    end_ns: int
    call: Call
    position: int
    """Position of a collective among those of its group on this rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """Everything that happened on a rank, on one clock."""

    rank: int
    ranges: tuple[Opened, ...]
    calls: tuple[Call, ...]
    works: tuple[Ran, ...]
    """In the order of their launch."""
    events: tuple[tuple[str, int], ...]
    """Names and ns of the recorded events, in the order of their record calls."""

    def on(self, clock: Clock) -> "RankRecord":
        """The same record on a host's clock."""
        calls = {
            call.order: replace(call, begin_ns=clock.ns(call.begin_ns), end_ns=clock.ns(call.end_ns))
            for call in self.calls
        }
        return replace(
            self,
            ranges=tuple(
                replace(each, begin_ns=clock.ns(each.begin_ns), end_ns=clock.ns(each.end_ns)) for each in self.ranges
            ),
            calls=tuple(calls.values()),
            works=tuple(
                replace(ran, start_ns=clock.ns(ran.start_ns), end_ns=clock.ns(ran.end_ns), call=calls[ran.call.order])
                for ran in self.works
            ),
            events=tuple((name, clock.ns(at_ns)) for name, at_ns in self.events),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Queued:
    """A work or event in a stream. Its times are None until all that it waits for is known."""

    ready_ns: int
    duration_ns: int
    after: tuple["Queued", ...]
    gap_ns: int = 0
    meeting: "Meeting | None" = None
    start_ns: int | None = None
    end_ns: int | None = None

    def settle(self) -> bool:
        """Compute the times if possible. Returns whether the end is known."""
        if self.start_ns is None:
            ends = [queued.end_ns for queued in self.after]
            if None in ends:
                return False
            self.start_ns = max([self.ready_ns, *(end + self.gap_ns for end in ends if end is not None)])
            if self.meeting is None:
                self.end_ns = self.start_ns + self.duration_ns
            else:
                self.meeting.join(self)
        return self.end_ns is not None


@dataclass(slots=True, kw_only=True)
class Meeting:
    """One collective: its kernels that have started."""

    size: int
    members: list[Queued] = field(default_factory=list)

    def join(self, member: Queued) -> None:
        self.members.append(member)
        if len(self.members) == self.size:
            starts = [queued.start_ns for queued in self.members if queued.start_ns is not None]
            for queued in self.members:
                queued.end_ns = max(starts) + max(each.duration_ns for each in self.members)


class Gpu:
    """Streams of one rank's device."""

    def __init__(self, *, latency_ns: int, gap_ns: int = 0) -> None:
        self._latency_ns = latency_ns
        self._gap_ns = gap_ns
        self._last: dict[int, Queued] = {}
        self._awaited: dict[int, list[Queued]] = {}
        self._unsettled: list[Queued] = []

    def launch(self, at_ns: int, stream: int, duration_ns: int, meeting: Meeting | None = None) -> Queued:
        """Queue a work that the host launches at `at_ns`."""
        return self._queue(at_ns, stream, duration_ns, self._gap_ns, meeting)

    def record(self, at_ns: int, stream: int) -> Queued:
        """Queue an event, which takes no time."""
        return self._queue(at_ns, stream, 0, 0, None)

    def wait(self, stream: int, event: Queued) -> None:
        """Let later work of the stream start after the event."""
        self._awaited.setdefault(stream, []).append(event)

    def last(self, stream: int | None) -> list[Queued]:
        """The last work or event of the stream, or of every stream."""
        return [queued for key, queued in self._last.items() if stream in (None, key)]

    @property
    def stuck(self) -> bool:
        """True if the times of some work are not known."""
        return bool(self._unsettled)

    def settle(self) -> bool:
        """Compute the times that have become known. Returns whether there are any."""
        before = len(self._unsettled)
        self._unsettled = [queued for queued in self._unsettled if not queued.settle()]
        return len(self._unsettled) < before

    def _queue(self, at_ns: int, stream: int, duration_ns: int, gap_ns: int, meeting: Meeting | None) -> Queued:
        before = [self._last[stream]] if stream in self._last else []
        queued = Queued(
            ready_ns=at_ns + self._latency_ns,
            duration_ns=duration_ns,
            after=(*before, *self._awaited.pop(stream, ())),
            gap_ns=gap_ns,
            meeting=meeting,
        )
        self._last[stream] = queued
        if not queued.settle():
            self._unsettled.append(queued)
        return queued


class Host:
    """One rank: its host performs the actions one after the other, on the thread that each names."""

    def __init__(self, rank: int, program: Program, meetings: dict[tuple[str, int], Meeting]) -> None:
        self.rank = rank
        self.gpu = Gpu(latency_ns=program.latency_ns, gap_ns=program.gap_ns)
        self._program = program
        self._meetings = meetings
        self._positions: dict[str, int] = {}
        self.now_ns = 0
        self._num_begun = 0
        self._open: dict[str, list[tuple[int, Range]]] = {}
        self.ranges: list[Opened] = []
        self.calls: list[Call] = []
        self.launched: list[tuple[Work, Queued, Call, int]] = []
        self._events: dict[str, Queued] = {}
        self.recorded: list[tuple[str, Queued]] = []

    def perform(self, actions: tuple[Action, ...], thread: str = MAIN) -> Iterator[None]:
        """Perform the actions. Yields whenever the host waits for work whose end is not yet known."""
        for action in actions:
            match action:
                case Sleep(ns=ns):
                    self.now_ns += ns
                case OnThread():
                    yield from self.perform(action.body, action.thread)
                case Range():
                    yield from self._range(action, thread)
                case Launch():
                    yield from self._launch(action, thread)
                case RecordEvent(event=name, stream=stream):
                    self._events[name] = self.gpu.record(self.now_ns, stream)
                    self.recorded.append((name, self._events[name]))
                    yield from self._call("cudaEventRecord", thread)
                case WaitEvent(event=name, stream=stream):
                    self.gpu.wait(stream, self._events[name])
                    yield from self._call("cudaStreamWaitEvent", thread)
                case Synchronize(stream=stream, event=name):
                    awaited = self.gpu.last(stream) if name is None else [self._events[name]]
                    yield from self._call(action.call, thread, awaited=awaited, sync=True)

    def _range(self, action: Range, thread: str) -> Iterator[None]:
        order, begin_ns = self._begin(), self.now_ns
        stack = self._open.setdefault(thread, [])
        stack.append((order, action))
        yield from self.perform(action.body, thread)
        stack.pop()
        self.ranges.append(Opened(action=action, begin_ns=begin_ns, end_ns=self.now_ns, thread=thread, order=order))

    def _launch(self, action: Launch, thread: str) -> Iterator[None]:
        queued = [(work, *self._enqueued(work)) for work in action.works]
        awaited = [each for _, each, _ in queued] if action.blocking else []
        yield from self._call(action.call, thread, awaited=awaited, sync=action.blocking)
        self.launched += ((work, each, self.calls[-1], position) for work, each, position in queued)

    def _enqueued(self, work: Work) -> tuple[Queued, int]:
        if work.group is None:
            return self.gpu.launch(self.now_ns, work.stream, work.duration_ns), 0
        name = work.group.name
        position = self._positions[name] = self._positions.get(name, -1) + 1
        meeting = self._meetings.setdefault((name, position), Meeting(size=len(work.group.ranks)))
        return self.gpu.launch(self.now_ns, work.stream, work.duration_ns, meeting), position

    def _call(
        self, name: str, thread: str, *, awaited: list[Queued] | None = None, sync: bool = False
    ) -> Iterator[None]:
        order, begin_ns, stack = self._begin(), self.now_ns, self._open.get(thread, [])
        self.now_ns += self._program.call_ns
        for queued in awaited or ():
            while not queued.settle() or queued.end_ns is None:
                yield
            self.now_ns = max(self.now_ns, queued.end_ns + self._program.wake_ns)
        self.calls.append(
            Call(
                name=name,
                begin_ns=begin_ns,
                end_ns=self.now_ns,
                thread=thread,
                order=order,
                within=tuple(opened for opened, _ in stack),
                meanings=tuple(action.meaning for _, action in stack if action.meaning is not None),
                sync=sync,
            )
        )

    def _begin(self) -> int:
        self._num_begun += 1
        return self._num_begun

    def record(self) -> RankRecord:
        works = (
            Ran(work=work, start_ns=queued.start_ns, end_ns=queued.end_ns, call=call, position=position)
            for work, queued, call, position in self.launched
            if queued.start_ns is not None and queued.end_ns is not None
        )
        return RankRecord(
            rank=self.rank,
            ranges=tuple(sorted(self.ranges, key=lambda opened: opened.order)),
            calls=tuple(self.calls),
            works=tuple(works),
            events=tuple((name, queued.end_ns) for name, queued in self.recorded if queued.end_ns is not None),
        )


def execute(program: Program) -> tuple[RankRecord, ...]:
    """Run the program. Returns one record per rank, each on the clock of its host.

    Raises Deadlock if a host or a collective would wait forever.
    """
    meetings: dict[tuple[str, int], Meeting] = {}
    hosts = [Host(rank, program, meetings) for rank in range(len(program.ranks))]
    running = [host.perform(actions) for host, actions in zip(hosts, program.ranks, strict=True)]
    while True:
        running = [each for each in running if next(each, MAIN) is None]
        settled = [host.gpu.settle() for host in hosts]
        if not any(settled):
            break
    stuck = [host.rank for host in hosts if host.gpu.stuck]
    if running or stuck:
        raise Deadlock(f"{len(running)} hosts wait for work that never ends, on the devices of ranks {stuck}")
    return tuple(host.record().on(program.clock(host.rank)) for host in hosts)
