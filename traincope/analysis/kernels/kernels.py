"""Time of kernels in traces: by class, relative to the GPU's peaks if they are known, and during communication.

If no trace contains a kernel, as on a CPU, the operators of the host take their place, by their own time: the time of
an operator without the operators that it calls.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from traincope.analysis.efficiency.counted_flops import counted_flops
from traincope.analysis.efficiency.peaks import memory_bandwidth, rank_peak
from traincope.analysis.kernels.kernel_classes import (
    ATTENTION,
    GEMM,
    UNKNOWN,
    Family,
    KernelClass,
    kernel_class,
    operator_class,
)
from traincope.analysis.kernels.overlap import Overlap, overlap, sum_overlaps
from traincope.analysis.kernels.roofline import Roofline, rooflines, sum_rooflines
from traincope.analysis.kernels.time_at_peak import Rated, ideal_by_counts, rate_by_shapes
from traincope.arrays import Bools, Ints
from traincope.store import RankRecords
from traincope.store.side_tables.traces import HOST_OPERATOR, KERNEL, MEMORY, Trace
from traincope.timeline import Timeline
from traincope.timeline.device.products import TF32

MAX_NAMED_KERNELS = 10
"""Number of kernels listed by name, the longest first."""


NO_KERNEL = "no kernel was traced"
NO_LINK = "communication moves its bytes over links"
NO_BANDWIDTH = "the memory bandwidth of {} is unknown; give the GPU's full name with traincope import --gpu"
NO_STRIDES = "the traces contain no shapes with strides; profile with record_shapes=True, on a newer torch"
NO_FORMULA = "no operator with known bytes and peak launched its kernels"


class Source(StrEnum):
    DEVICE = "device"
    """Kernels of the device."""
    HOST = "host"
    """Operators of the host, if no trace contains a kernel."""


@dataclass(slots=True, kw_only=True)
class _Sum:
    count: int = 0
    total_ns: int = 0
    took_ns: int = 0
    ideal_ns: float = 0.0
    fused_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTime:
    """Time of one class of kernels over all traces. Kernels that run at the same time each count."""

    name: str
    family: Family
    count: int
    total_ns: int
    fused_ns: int
    """Time of products that communicate in the same kernel."""
    rated: Rated | None
    """None: their FLOPs or the device's peak is unknown."""
    roofline: Roofline | None = None
    """None with a reason."""
    roofline_reason: str | None = None

    @property
    def inefficiency_ns(self) -> int | None:
        """Time of the rated kernels above their ideal time."""
        return None if self.rated is None else round(self.rated.took_ns - self.rated.ideal_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTime:
    """Time of the kernels of one name."""

    name: str
    kind: str
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Results of all traces together."""

    source: Source
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    """The traced steps, if the recorder traced them."""
    num_traces: int
    classes: tuple[ClassTime, ...]
    """The largest first."""
    longest: tuple[NamedTime, ...]
    overlap: Overlap | None
    """None: no trace contains a kernel."""

    @property
    def total_ns(self) -> int:
        return sum(entry.total_ns for entry in self.classes)

    @property
    def unknown_ratio(self) -> float:
        """Share of the time in kernels of unknown class."""
        unknown = sum(entry.total_ns for entry in self.classes if entry.family is Family.UNKNOWN)
        return unknown / self.total_ns if self.total_ns else 0.0


def kernels(timeline: Timeline) -> Kernels | None:
    """Sum the kernels of all traces by class; None if no trace contains a kernel or an operator."""
    categories = {Source.DEVICE: KERNEL, Source.HOST: HOST_OPERATOR}
    found = (_kernels(timeline, _with(timeline, category), source) for source, category in categories.items())
    return next((result for result in found if result.num_traces), None)


def _with(timeline: Timeline, category: str) -> Iterator[tuple[int, Trace]]:
    """Yield ranks and traces with events of a category."""
    for rank, traces in timeline.traces.ranks.items():
        yield from ((rank, trace) for trace in traces if trace.of_category(category).any())


def _kernels(timeline: Timeline, traces: Iterable[tuple[int, Trace]], source: Source) -> Kernels:
    counting = _Counting(source=source)
    overlaps = []
    ranks: list[int] = []
    steps: set[int] = set()
    records = {entry.rank: entry for entry in timeline.run.ranks}
    for rank, trace in traces:
        ranks.append(rank)
        steps |= set() if trace.info.step is None else {trace.info.step}
        times = _times(trace, source)
        counting.add(times)
        counting.rate(_rated(timeline, records[rank], times, source))
        if source is Source.DEVICE:
            overlaps.append(_overlap(times))
            _add_rooflines(counting, records[rank], times, timeline.run.info.settings)
    return Kernels(
        source=source,
        ranks=tuple(dict.fromkeys(ranks)),
        steps=tuple(sorted(steps)),
        num_traces=len(ranks),
        classes=counting.by_class(),
        longest=counting.longest(),
        overlap=sum_overlaps(overlaps) if overlaps else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Counted events of one trace."""

    trace: Trace
    rows: Ints
    own_ns: Ints
    """Own time of each row."""
    classes: tuple[KernelClass, ...]
    """Class of each name of the trace."""

    def of(self, chosen: str) -> Bools:
        """Mark the events of the trace that count in that class."""
        result = np.zeros(len(self.trace), dtype=bool)
        named = np.array([entry.name == chosen for entry in self.classes])
        result[self.rows] = named[self.trace.name[self.rows]]
        return result

    def total_ns(self, chosen: str) -> int:
        return int(self.own_ns[self.of(chosen)[self.rows]].sum())


def _times(trace: Trace, source: Source) -> _Times:
    if source is Source.HOST:
        rows = np.flatnonzero(trace.of_category(HOST_OPERATOR))
        return _Times(
            trace=trace, rows=rows, own_ns=_own_ns(trace, rows), classes=tuple(map(operator_class, trace.names))
        )
    rows = np.flatnonzero(trace.of_category(KERNEL, *MEMORY))
    return _Times(trace=trace, rows=rows, own_ns=trace.duration_ns[rows], classes=tuple(map(kernel_class, trace.names)))


def _own_ns(trace: Trace, rows: Ints) -> Ints:
    """Return the duration of each row without the rows that began within it on the same thread."""
    own_ns = trace.duration_ns[rows].tolist()
    starts, ends, lanes = trace.start_ns[rows].tolist(), trace.end_ns[rows].tolist(), trace.lane[rows].tolist()
    open_: dict[int, list[int]] = defaultdict(list)
    for at in np.lexsort((-trace.end_ns[rows], trace.start_ns[rows])).tolist():
        around = open_[lanes[at]]
        while around and ends[around[-1]] <= starts[at]:
            around.pop()
        if around:
            own_ns[around[-1]] -= min(ends[at], ends[around[-1]]) - starts[at]
        around.append(at)
    return np.array(own_ns, dtype=np.int64)


def _rated(timeline: Timeline, records: RankRecords, times: _Times, source: Source) -> Mapping[str, Rated]:
    """Rate the kernels of each class whose FLOPs and peak are known."""
    settings, trace = timeline.run.info.settings, times.trace
    if source is Source.DEVICE and np.isfinite(trace.flops).any():
        peak = rank_peak(records.info.device, settings, dtypes={*trace.dtypes, TF32})
        rated = {kind: rate_by_shapes(trace, times.of(kind), peak.flops, kind=kind) for kind in (GEMM, ATTENTION)}
        return {kind: result for kind, result in rated.items() if result is not None}
    timeline_rank = next((entry for entry in timeline.ranks if entry.rank == records.rank), None)
    counted = None if timeline_rank is None or trace.info.step is None else counted_flops(timeline_rank)
    if counted is None:
        return {}
    peak = rank_peak(records.info.device, settings, dtypes={dtype for _, _, dtype in counted.flops})
    ideal = ideal_by_counts(counted, peak.flops) or {}
    took = {name: times.total_ns(name) for name in ideal}
    return {name: Rated(took_ns=took[name], ideal_ns=ideal[name]) for name in ideal if took[name]}


def _add_rooflines(counting: "_Counting", records: RankRecords, times: _Times, settings: Mapping[str, Any]) -> None:
    """Add the rooflines of a trace, or the reason why it has none."""
    trace, device = times.trace, records.info.device
    bytes_per_second = memory_bandwidth(device)
    if bytes_per_second is None:
        counting.roofline_reason = NO_BANDWIDTH.format(device.get("name", "this device"))
    elif not trace.info.has_strides and counting.roofline_reason is None:
        counting.roofline_reason = NO_STRIDES
    elif trace.info.lost is None:
        sends = np.array([entry.family is Family.COMMUNICATION for entry in times.classes])[trace.name]
        peak = rank_peak(device, settings, dtypes={*trace.dtypes, TF32})
        computes = np.flatnonzero(trace.of_category(KERNEL) & ~sends)
        found = rooflines(trace, computes, times.classes, peaks=peak.flops, bytes_per_second=bytes_per_second)
        for name, roofline in found.items():
            counting.rooflines[name].append(roofline)


def _overlap(times: _Times) -> Overlap:
    kernel = times.trace.of_category(KERNEL)
    sends = np.array([entry.family is Family.COMMUNICATION for entry in times.classes])[times.trace.name]
    return overlap(times.trace, compute=kernel & ~sends, communication=kernel & sends)


@dataclass(slots=True, kw_only=True)
class _Counting:
    """Running sums over traces."""

    source: Source
    names: dict[str, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    classes: dict[str, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    kinds: dict[str, KernelClass] = field(default_factory=dict)
    rooflines: dict[str, list[Roofline]] = field(default_factory=lambda: defaultdict(list))
    roofline_reason: str | None = None

    def add(self, times: _Times) -> None:
        names = times.trace.name[times.rows]
        total_ns = np.zeros(len(times.trace.names), dtype=np.int64)
        np.add.at(total_ns, names, times.own_ns)
        count = np.bincount(names, minlength=len(total_ns))
        for at in np.flatnonzero(count).tolist():
            kind = self.kinds[times.trace.names[at]] = times.classes[at]
            for entry in (self.names[times.trace.names[at]], self.classes[kind.name]):
                entry.count += int(count[at])
                entry.total_ns += int(total_ns[at])
                entry.fused_ns += int(total_ns[at]) if kind.fused else 0

    def rate(self, rated: Mapping[str, Rated]) -> None:
        for name, result in rated.items():
            self.classes[name].took_ns += result.took_ns
            self.classes[name].ideal_ns += result.ideal_ns

    def by_class(self) -> tuple[ClassTime, ...]:
        family = {kind.name: kind.family for kind in self.kinds.values()}
        result = (
            ClassTime(
                name=name,
                family=family[name],
                count=entry.count,
                total_ns=entry.total_ns,
                fused_ns=entry.fused_ns,
                rated=Rated(took_ns=entry.took_ns, ideal_ns=entry.ideal_ns) if entry.took_ns else None,
                roofline=sum_rooflines(self.rooflines[name]) if name in self.rooflines else None,
                roofline_reason=None if name in self.rooflines else self._why_no_roofline(family[name]),
            )
            for name, entry in self.classes.items()
        )
        return tuple(sorted(result, key=lambda entry: (entry.name == UNKNOWN, -entry.total_ns, entry.name)))

    def _why_no_roofline(self, family: Family) -> str:
        if self.source is Source.HOST:
            return NO_KERNEL
        return NO_LINK if family is Family.COMMUNICATION else self.roofline_reason or NO_FORMULA

    def longest(self) -> tuple[NamedTime, ...]:
        ordered = sorted(self.names.items(), key=lambda pair: (-pair[1].total_ns, pair[0]))[:MAX_NAMED_KERNELS]
        return tuple(
            NamedTime(name=name, kind=self.kinds[name].name, count=entry.count, total_ns=entry.total_ns)
            for name, entry in ordered
        )
