"""Export of a run as one trace for ui.perfetto.dev and chrome://tracing, in the JSON of torch's profiler.

Each rank is a process with tracks for its steps, training thread, other threads, and collectives by mesh axis.
Overlapping intervals get more tracks. Arrows connect the ranks of a collective, and sender and receiver. Counters show
memory and logged values. Kernel traces are processes of their own. Times count from `baseTimeNanoseconds`; all ranks
share one axis.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version

from traincope.errors import RunDirectoryError
from traincope.events import Kind
from traincope.report.exports import TextExport
from traincope.store.traces import Trace
from traincope.timeline import RankTimeline, Timeline, error_between_ns, match_instances
from traincope_exporters.traces import chrome
from traincope_exporters.traces.flows import Flows
from traincope_exporters.traces.intervals import Interval, intervals
from traincope_exporters.traces.points import marks, values
from traincope_exporters.traces.tracks import Track, tracks

EVENTS_PER_CHUNK = 4096
"""Events per piece of text."""
RECORDS_PER_CHUNK = 1 << 16
"""Events that are converted together."""


def perfetto(timeline: Timeline) -> Iterator[str]:
    """The trace's text. Raises RunDirectoryError if the run has no event."""
    base_ns = _base_ns(timeline)
    yield json.dumps(_about(timeline, base_ns=base_ns))[:-1] + ', "traceEvents": [\n'
    lines: list[str] = []
    separator = ""
    for event in _Events(timeline, base_ns=base_ns).all():
        lines.append(event)
        if len(lines) == EVENTS_PER_CHUNK:
            yield separator + ",\n".join(lines)
            lines, separator = [], ",\n"
    yield (separator if lines else "") + ",\n".join(lines) + "\n]}\n"


def _base_ns(timeline: Timeline) -> int:
    threads = [records for rank in timeline.ranks for records in rank.threads.values()]
    traced = [trace for traces in timeline.traces.ranks.values() for trace in traces]
    starts = [int(records["start_ns"].min()) for records in threads if len(records)]
    starts += [int(trace.start_ns[0]) for trace in traced if len(trace)]
    if not starts:
        raise RunDirectoryError(f"{timeline.run.path} holds no events; try again once training has begun")
    return min(starts)


def _about(timeline: Timeline, *, base_ns: int) -> dict[str, object]:
    description = {
        "made by": f"traincope {version('traincope')}",
        "run": timeline.run.info.id,
        "world size": timeline.run.info.world_size,
        "maximum clock error between two ranks in ns": error_between_ns(timeline.clocks),
    }
    return {"displayTimeUnit": "ns", "baseTimeNanoseconds": base_ns, "otherData": description}


class _Events:
    """All events as text, process by process, in order of start on each track."""

    def __init__(self, timeline: Timeline, *, base_ns: int) -> None:
        self._timeline, self._base_ns = timeline, base_ns
        self._threads = 0
        """Number of threads so far. Viewers need thread numbers that are unique in the trace."""
        self._recorded = {rank.rank: rank for rank in timeline.run.ranks}

    def all(self) -> Iterator[str]:
        flows = Flows(match_instances(self._timeline))
        for rank in self._timeline.ranks:
            yield from self._rank(rank, flows)
        traces = [
            (number, trace) for number, rank_traces in self._timeline.traces.ranks.items() for trace in rank_traces
        ]
        beyond = max((rank.rank for rank in self._timeline.ranks), default=-1) + 2
        for process, (number, trace) in enumerate(traces, start=beyond):
            yield from self._trace(number, trace, process=process)

    def _rank(self, rank: RankTimeline, flows: Flows) -> Iterator[str]:
        """Events of a rank. Its process is its number plus 1 because Perfetto reserves 0 for the idle process."""
        process = rank.rank + 1
        place = [f"{axis}={index}" for axis, index in rank.coords.items()]
        name = " ".join([f"rank {rank.rank}", *place, self._recorded[rank.rank].info.host.name])
        yield from chrome.name_process(process, name, order=rank.rank)
        for track in tracks(rank):
            yield from self._track(rank, track, flows, process=process)
        for value in values(rank):
            at_ns = value.at_ns - self._base_ns
            yield chrome.counter(value.name, process=process, at_ns=at_ns, unit=value.unit, value=value.value)
        for mark in marks(rank, self._recorded[rank.rank].details):
            at_ns, args = mark.at_ns - self._base_ns, {key: str(value) for key, value in mark.details.items()}
            yield chrome.instant(mark.name, place=chrome.thread(process, 0), at_ns=at_ns, args=args)

    def _track(self, rank: RankTimeline, track: Track, flows: Flows, *, process: int) -> Iterator[str]:
        place, names = self._thread(process, track.name)
        yield from names
        for first in range(0, len(track.records), RECORDS_PER_CHUNK):
            chunk = track.records[first : first + RECORDS_PER_CHUNK]
            yield from self._slices(rank, replace(track, records=chunk), flows, place)

    def _slices(self, rank: RankTimeline, track: Track, flows: Flows, place: str) -> Iterator[str]:
        parts = flows.parts(rank, track.records) if track.collective else []
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
                yield chrome.flow(interval.name, phase=phase, number=number, place=place, at_ns=at_ns - self._base_ns)

    def _trace(self, rank: int, trace: Trace, *, process: int) -> Iterator[str]:
        """A kernel trace with its lanes."""
        step = "" if trace.info.step is None else f", step {trace.info.step}"
        yield from chrome.name_process(process, f"rank {rank} kernels{step}", order=rank)
        threads = [self._thread(process, f"{lane.process} {lane.thread}") for lane in trace.lanes]
        for _, names in threads:
            yield from names
        columns = (trace.start_ns, trace.duration_ns, trace.name, trace.category, trace.lane)
        for start, length, name, category, lane in zip(*(column.tolist() for column in columns), strict=True):
            yield self._slice(trace.names[name], trace.categories[category], threads[lane][0], start, length, {})

    def _thread(self, process: int, name: str) -> tuple[str, tuple[str, str]]:
        """New thread: its place, and the events that name it."""
        self._threads += 1
        place = chrome.thread(process, self._threads)
        return place, chrome.name_thread(place, name, order=self._threads)

    def _slice(self, name: str, category: str, place: str, start_ns: int, length_ns: int, args: chrome.Args) -> str:
        at_ns = start_ns - self._base_ns
        return chrome.slice_(name, category=category, place=place, at_ns=at_ns, length_ns=length_ns, args=args)


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


EXPORT = TextExport(
    suffix="perfetto.json", pieces=perfetto, hint="https://ui.perfetto.dev, which keeps it on this machine"
)
