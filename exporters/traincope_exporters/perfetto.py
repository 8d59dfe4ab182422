"""The whole run as one trace for ui.perfetto.dev (and chrome://tracing): Chrome's JSON, as torch's profiler writes it.

One process a rank; in it a track for its steps, its training thread, its other threads, and one a mesh axis for
collectives, more where these overlap; arrows over the ranks that joined a collective, and from sender to receiver;
counters for memory and logged values; kernel traces as processes of their own. Times count from `baseTimeNanoseconds`,
and all ranks are on one axis.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version

from traincope.errors import RunDirectoryError
from traincope.events import Kind
from traincope.store.traces import Trace
from traincope.timeline import RankTimeline, Timeline, error_between_ns, match_instances
from traincope_exporters import chrome
from traincope_exporters.exports import TextExport
from traincope_exporters.flows import Flows
from traincope_exporters.intervals import Interval, intervals
from traincope_exporters.points import marks, values
from traincope_exporters.tracks import Track, tracks

AT_ONCE = 4096
"""Events a piece of text."""
RECORDS_AT_ONCE = 1 << 16
"""That are looked at together."""


def perfetto(timeline: Timeline) -> Iterator[str]:
    """The trace's text. Raises RunDirectoryError where the run holds nothing with a time."""
    base_ns = _base_ns(timeline)
    yield json.dumps(_about(timeline, base_ns=base_ns))[:-1] + ', "traceEvents": [\n'
    lines: list[str] = []
    separator = ""
    for event in _Events(timeline, base_ns=base_ns).all():
        lines.append(event)
        if len(lines) == AT_ONCE:
            yield separator + ",\n".join(lines)
            lines, separator = [], ",\n"
    yield (separator if lines else "") + ",\n".join(lines) + "\n]}\n"


def _base_ns(timeline: Timeline) -> int:
    threads = [records for rank in timeline.ranks for records in rank.threads.values()]
    traced = [trace for traces in timeline.traces.ranks.values() for trace in traces]
    starts = [int(records["start_ns"].min()) for records in threads if len(records)]
    starts += [int(trace.start_ns[0]) for trace in traced if len(trace)]
    if not starts:
        raise RunDirectoryError(f"{timeline.run.path} holds nothing with a time; try again once training has begun")
    return min(starts)


def _about(timeline: Timeline, *, base_ns: int) -> dict[str, object]:
    told = {
        "made by": f"traincope {version('traincope')}",
        "run": timeline.run.info.id,
        "world size": timeline.run.info.world_size,
        "ns that any two ranks' clocks are apart at most": error_between_ns(timeline.clocks),
    }
    return {"displayTimeUnit": "ns", "baseTimeNanoseconds": base_ns, "otherData": told}


class _Events:
    """All events as text, process by process, in each track in order of begin."""

    def __init__(self, timeline: Timeline, *, base_ns: int) -> None:
        self._timeline, self._base_ns = timeline, base_ns
        self._threads = 0
        """Given out so far: viewers want a thread's number to be the only one of the trace."""
        self._recorded = {rank.rank: rank for rank in timeline.run.ranks}

    def all(self) -> Iterator[str]:
        flows = Flows(match_instances(self._timeline))
        for rank in self._timeline.ranks:
            yield from self._rank(rank, flows)
        traces = [(number, trace) for number, own in self._timeline.traces.ranks.items() for trace in own]
        beyond = max((rank.rank for rank in self._timeline.ranks), default=-1) + 2
        for process, (number, trace) in enumerate(traces, start=beyond):
            yield from self._trace(number, trace, process=process)

    def _rank(self, rank: RankTimeline, flows: Flows) -> Iterator[str]:
        """Its process is one more than its number, for Perfetto takes 0 for the idle process."""
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
            at_ns, said = mark.at_ns - self._base_ns, {key: str(told) for key, told in mark.details.items()}
            yield chrome.instant(mark.name, place=chrome.thread(process, 0), at_ns=at_ns, said=said)

    def _track(self, rank: RankTimeline, track: Track, flows: Flows, *, process: int) -> Iterator[str]:
        place, names = self._thread(process, track.name)
        yield from names
        for first in range(0, len(track.records), RECORDS_AT_ONCE):
            some = track.records[first : first + RECORDS_AT_ONCE]
            yield from self._slices(rank, replace(track, records=some), flows, place)

    def _slices(self, rank: RankTimeline, track: Track, flows: Flows, place: str) -> Iterator[str]:
        parts = flows.parts(rank, track.records) if track.collective else []
        for row, one in enumerate(intervals(rank, track.records)):
            part = parts[row] if parts else None
            said = {**_said(one), **(part.told if part else {})}
            yield self._slice(_name(one), one.kind.name.lower(), place, one.start_ns, one.end_ns - one.start_ns, said)
            if part and part.point:
                number, phase, at_ns = part.point
                yield chrome.flow(one.name, phase=phase, number=number, place=place, at_ns=at_ns - self._base_ns)

    def _trace(self, rank: int, trace: Trace, *, process: int) -> Iterator[str]:
        """A kernel trace, its lanes as they are."""
        step = "" if trace.info.step is None else f", step {trace.info.step}"
        yield from chrome.name_process(process, f"rank {rank} kernels{step}", order=rank)
        threads = [self._thread(process, f"{lane.process} {lane.thread}") for lane in trace.lanes]
        for _, names in threads:
            yield from names
        columns = (trace.start_ns, trace.duration_ns, trace.name, trace.category, trace.lane)
        for start, length, name, category, lane in zip(*(column.tolist() for column in columns), strict=True):
            yield self._slice(trace.names[name], trace.categories[category], threads[lane][0], start, length, {})

    def _thread(self, process: int, name: str) -> tuple[str, tuple[str, str]]:
        """A new one: its place, and the events that name it."""
        self._threads += 1
        place = chrome.thread(process, self._threads)
        return place, chrome.name_thread(place, name, order=self._threads)

    def _slice(self, name: str, category: str, place: str, start_ns: int, length_ns: int, said: chrome.Said) -> str:
        at_ns = start_ns - self._base_ns
        return chrome.slice_(name, category=category, place=place, at_ns=at_ns, length_ns=length_ns, said=said)


def _name(interval: Interval) -> str:
    """With the number where each has one."""
    if interval.kind is Kind.STEP:
        return f"step {interval.step}"
    return f"{interval.name}{interval.sequence}" if interval.kind is Kind.ACTION else interval.name


def _said(interval: Interval) -> dict[str, object]:
    """What is known of it beside its name and times."""
    said: dict[str, object] = {} if interval.step is None else {"step": interval.step}
    if interval.kind is Kind.ACTION:
        said |= {"stage": interval.peer, "microbatch": interval.sequence}
    if interval.kind in (Kind.COLLECTIVE, Kind.STALL):
        said |= {"axis": interval.axis, "sequence": interval.sequence, "bytes": interval.value}
    return {**said, "open": True} if interval.open else said


EXPORT = TextExport(
    suffix="perfetto.json", pieces=perfetto, hint="https://ui.perfetto.dev, which keeps it on this machine"
)
