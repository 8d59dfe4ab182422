"""Events of a run as tracks, arrows, counters and marks, in the format of a viewer.

Each rank is a process with tracks for its steps, training thread, other threads, and collectives by mesh axis.
Overlapping intervals get more tracks. Arrows connect the ranks of a collective, and sender and receiver. Counters show
memory and logged values. Kernel traces are processes of their own.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from traincope.events import Kind
from traincope.store.side_tables.traces import Trace
from traincope.timeline import RankTimeline, Timeline, match_instances
from traincope_exporters.traces.chrome import Args
from traincope_exporters.traces.flows import Flows
from traincope_exporters.traces.intervals import Interval, intervals
from traincope_exporters.traces.points import marks, values
from traincope_exporters.traces.tracks import Track, tracks

RECORDS_PER_CHUNK = 1 << 16
"""Events that are converted together."""

Place = TypeVar("Place")
"""Process and thread of an event."""
Piece = TypeVar("Piece", covariant=True)
"""A piece of the file."""


class Format(Protocol[Place, Piece]):
    """How a file writes each thing (`chrome`, `packets`). Times in ns from the file's base."""

    def thread(self, process: int, number: int) -> Place: ...

    def name_process(self, process: int, name: str, *, order: int) -> tuple[Piece, ...]: ...

    def name_thread(self, place: Place, name: str, *, order: int) -> tuple[Piece, ...]: ...

    def slice_(self, name: str, *, category: str, place: Place, at_ns: int, length_ns: int, args: Args) -> Piece: ...

    def flow(self, name: str, *, phase: str, number: int, place: Place, at_ns: int) -> Piece: ...

    def counter(self, name: str, *, process: int, at_ns: int, unit: str, value: float) -> Piece: ...

    def instant(self, name: str, *, place: Place, at_ns: int, args: Args) -> Piece: ...


class Events(Generic[Place, Piece]):
    """All events, process by process, in order of start on each track."""

    def __init__(self, timeline: Timeline, form: Format[Place, Piece], *, base_ns: int = 0) -> None:
        """`base_ns`: the instant from which times count."""
        self._timeline, self._form, self._base_ns = timeline, form, base_ns
        self._flows = Flows(match_instances(timeline))
        self._threads = 0
        """Number of threads so far. Viewers need thread numbers that are unique in the trace."""
        self._recorded = {rank.rank: rank for rank in timeline.run.ranks}

    def of(self, ranks: Collection[int]) -> Iterator[Piece]:
        """All events of these ranks."""
        for rank in self._timeline.ranks:
            if rank.rank in ranks:
                yield from self._rank(rank)
        traces = (
            (number, trace)
            for number, rank_traces in self._timeline.traces.ranks.items()
            if number in ranks
            for trace in rank_traces
        )
        beyond = max((rank.rank for rank in self._timeline.ranks), default=-1) + 2
        for process, (number, trace) in enumerate(traces, start=beyond):
            yield from self._trace(number, trace, process=process)

    def _rank(self, rank: RankTimeline) -> Iterator[Piece]:
        """Events of a rank. Its process is its number plus 1 because Perfetto reserves 0 for the idle process."""
        process = rank.rank + 1
        place = [f"{axis}={index}" for axis, index in rank.coords.items()]
        name = " ".join([f"rank {rank.rank}", *place, self._recorded[rank.rank].info.host.name])
        yield from self._form.name_process(process, name, order=rank.rank)
        for track in tracks(rank):
            yield from self._track(rank, track, process=process)
        for value in values(rank):
            at_ns = value.at_ns - self._base_ns
            yield self._form.counter(value.name, process=process, at_ns=at_ns, unit=value.unit, value=value.value)
        for mark in marks(rank, self._recorded[rank.rank].details):
            at_ns, args = mark.at_ns - self._base_ns, {key: str(value) for key, value in mark.details.items()}
            yield self._form.instant(mark.name, place=self._form.thread(process, 0), at_ns=at_ns, args=args)

    def _track(self, rank: RankTimeline, track: Track, *, process: int) -> Iterator[Piece]:
        place, names = self._thread(process, track.name)
        yield from names
        for first in range(0, len(track.records), RECORDS_PER_CHUNK):
            chunk = track.records[first : first + RECORDS_PER_CHUNK]
            yield from self._slices(rank, replace(track, records=chunk), place)

    def _slices(self, rank: RankTimeline, track: Track, place: Place) -> Iterator[Piece]:
        parts = self._flows.parts(rank, track.records) if track.collective else []
        for row, interval in enumerate(intervals(rank, track.records)):
            part = parts[row] if parts else None
            args = {**_args(interval), **(part.split if part else {})}
            yield self._slice(
                _name(interval),
                interval.kind.name.lower(),
                place,
                interval.start_ns,
                interval.end_ns - interval.start_ns,
                args,
            )
            if part and part.point:
                number, phase, at_ns = part.point
                yield self._form.flow(
                    interval.name, phase=phase, number=number, place=place, at_ns=at_ns - self._base_ns
                )

    def _trace(self, rank: int, trace: Trace, *, process: int) -> Iterator[Piece]:
        """A kernel trace with its lanes."""
        step = "" if trace.info.step is None else f", step {trace.info.step}"
        yield from self._form.name_process(process, f"rank {rank} kernels{step}", order=rank)
        threads = [self._thread(process, f"{lane.process} {lane.thread}") for lane in trace.lanes]
        for _, names in threads:
            yield from names
        columns = (trace.start_ns, trace.duration_ns, trace.name, trace.category, trace.lane)
        for start, length, name, category, lane in zip(*(column.tolist() for column in columns), strict=True):
            yield self._slice(trace.names[name], trace.categories[category], threads[lane][0], start, length, {})

    def _thread(self, process: int, name: str) -> tuple[Place, tuple[Piece, ...]]:
        """New thread: its place, and the events that name it."""
        self._threads += 1
        place = self._form.thread(process, self._threads)
        return place, self._form.name_thread(place, name, order=self._threads)

    def _slice(self, name: str, category: str, place: Place, start_ns: int, length_ns: int, args: Args) -> Piece:
        at_ns = start_ns - self._base_ns
        return self._form.slice_(name, category=category, place=place, at_ns=at_ns, length_ns=length_ns, args=args)


def _name(interval: Interval) -> str:
    """Name with the number, for steps and pipeline actions."""
    if interval.kind is Kind.STEP:
        return f"step {interval.step}"
    return f"{interval.name}{interval.sequence}" if interval.kind is Kind.ACTION else interval.name


def _args(interval: Interval) -> dict[str, object]:
    """Arguments of an interval, without its name and times."""
    args: dict[str, object] = {} if interval.step is None else {"step": interval.step}
    if interval.kind is Kind.ACTION:
        args |= {"stage": interval.peer, "microbatch": interval.sequence}
    if interval.kind in (Kind.COLLECTIVE, Kind.STALL):
        args |= {"axis": interval.axis, "sequence": interval.sequence, "bytes": interval.value}
    return {**args, "open": True} if interval.open else args
