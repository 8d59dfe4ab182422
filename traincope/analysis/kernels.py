"""Which kernels took the time of the traces: by class, against peak where that is known, and beside communication.

Where no trace holds a kernel, as on a CPU, it is the operators of the host instead, by their own time: that of an
operator without the operators that it calls.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.counted import counted_flops
from traincope.analysis.kernel_classes import GEMM, UNKNOWN, Family, KernelClass, kernel_class, operator_class
from traincope.analysis.overlap import Overlap, overlap, together
from traincope.analysis.peaks import rank_peak
from traincope.analysis.products import TF32, Rated, by_counts, by_shapes
from traincope.store.traces import HOST_OPERATOR, KERNEL, MEMORY, Trace
from traincope.timeline import Timeline
from traincope.timeline.numbering import Ints

MOST_NAMED = 10
"""Kernels that are named, those first that took most."""

Bools = NDArray[np.bool_]


class Source(StrEnum):
    DEVICE = "device"
    """Kernels, as the device ran them."""
    HOST = "host"
    """Operators of the host, where no kernel is known."""


@dataclass(slots=True, kw_only=True)
class _Sum:
    count: int = 0
    total_ns: int = 0
    took_ns: int = 0
    ideal_ns: float = 0.0
    fused_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTime:
    """Kernels of one class, over all traces. Several at the same time count each."""

    name: str
    family: Family
    count: int
    total_ns: int
    fused_ns: int
    """Of products that communicate in the same kernel."""
    rated: Rated | None
    """None: what they multiplied, or the device's peak, is not known."""

    @property
    def inefficiency_ns(self) -> int | None:
        """What those that are rated took beyond their ideal."""
        return None if self.rated is None else round(self.rated.took_ns - self.rated.ideal_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTime:
    """Kernels of one name."""

    name: str
    kind: str
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Of all traces together."""

    source: Source
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    """Those that were traced, where the recorder traced them."""
    num_traces: int
    classes: tuple[ClassTime, ...]
    """The largest first."""
    longest: tuple[NamedTime, ...]
    overlap: Overlap | None
    """None: no kernel is known."""

    @property
    def total_ns(self) -> int:
        return sum(one.total_ns for one in self.classes)

    @property
    def unknown_ratio(self) -> float:
        """Share of the time that is in no class."""
        unknown = sum(one.total_ns for one in self.classes if one.family is Family.UNKNOWN)
        return unknown / self.total_ns if self.total_ns else 0.0


def kernels(timeline: Timeline) -> Kernels | None:
    """None where no trace holds a kernel or an operator."""
    traces = [(rank, trace) for rank, found in timeline.traces.ranks.items() for trace in found]
    for source, category in ((Source.DEVICE, KERNEL), (Source.HOST, HOST_OPERATOR)):
        chosen = [(rank, trace) for rank, trace in traces if trace.of_category(category).any()]
        if chosen:
            return _kernels(timeline, chosen, source)
    return None


def _kernels(timeline: Timeline, traces: list[tuple[int, Trace]], source: Source) -> Kernels:
    counting = _Counting(source=source)
    overlaps = []
    for rank, trace in traces:
        times = _times(trace, source)
        counting.add(times)
        counting.rate(_rated(timeline, rank, times, source))
        if source is Source.DEVICE:
            overlaps.append(_overlap(times))
    return Kernels(
        source=source,
        ranks=tuple(dict.fromkeys(rank for rank, _ in traces)),
        steps=tuple(sorted({trace.info.step for _, trace in traces if trace.info.step is not None})),
        num_traces=len(traces),
        classes=counting.by_class(),
        longest=counting.longest(),
        overlap=together(overlaps) if overlaps else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """The events of one trace that are counted."""

    trace: Trace
    rows: Ints
    own_ns: Ints
    """Of each of them."""
    classes: tuple[KernelClass, ...]
    """Of each name of the trace."""

    def of(self, chosen: str) -> Bools:
        """Which events of the trace are counted in that class."""
        found = np.zeros(len(self.trace), dtype=bool)
        named = np.array([one.name == chosen for one in self.classes])
        found[self.rows] = named[self.trace.name[self.rows]]
        return found

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
    """Duration less that of what began within it on the same thread, of each of these rows."""
    own = trace.duration_ns[rows].tolist()
    starts, ends, lanes = trace.start_ns[rows].tolist(), trace.end_ns[rows].tolist(), trace.lane[rows].tolist()
    open_: dict[int, list[int]] = defaultdict(list)
    for at in np.lexsort((-trace.end_ns[rows], trace.start_ns[rows])).tolist():
        around = open_[lanes[at]]
        while around and ends[around[-1]] <= starts[at]:
            around.pop()
        if around:
            own[around[-1]] -= min(ends[at], ends[around[-1]]) - starts[at]
        around.append(at)
    return np.array(own, dtype=np.int64)


def _rated(timeline: Timeline, rank: int, times: _Times, source: Source) -> Mapping[str, Rated]:
    """Class -> its kernels of which the FLOPs and the peak are known."""
    records = {one.rank: one for one in timeline.run.ranks}[rank]
    settings, trace = timeline.run.info.settings, times.trace
    if source is Source.DEVICE and np.isfinite(trace.flops).any():
        peak = rank_peak(records.info.device, settings, dtypes={*trace.dtypes, TF32})
        found = by_shapes(trace, times.of(GEMM), peak.flops)
        return {} if found is None else {GEMM: found}
    own = next((one for one in timeline.ranks if one.rank == rank), None)
    counted = None if own is None or trace.info.step is None else counted_flops(own)
    if counted is None:
        return {}
    peak = rank_peak(records.info.device, settings, dtypes={dtype for _, _, dtype in counted.flops})
    ideal = by_counts(counted, peak.flops) or {}
    took = {name: times.total_ns(name) for name in ideal}
    return {name: Rated(took_ns=took[name], ideal_ns=ideal[name]) for name in ideal if took[name]}


def _overlap(times: _Times) -> Overlap:
    kernel = times.trace.of_category(KERNEL)
    sends = np.array([one.family is Family.COMMUNICATION for one in times.classes])[times.trace.name]
    return overlap(times.trace, compute=kernel & ~sends, communication=kernel & sends)


@dataclass(slots=True, kw_only=True)
class _Counting:
    """Sums over traces."""

    source: Source
    names: dict[str, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    classes: dict[str, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    kinds: dict[str, KernelClass] = field(default_factory=dict)

    def add(self, times: _Times) -> None:
        names = times.trace.name[times.rows]
        total_ns = np.zeros(len(times.trace.names), dtype=np.int64)
        np.add.at(total_ns, names, times.own_ns)
        count = np.bincount(names, minlength=len(total_ns))
        for at in np.flatnonzero(count).tolist():
            kind = self.kinds[times.trace.names[at]] = times.classes[at]
            for one in (self.names[times.trace.names[at]], self.classes[kind.name]):
                one.count += int(count[at])
                one.total_ns += int(total_ns[at])
                one.fused_ns += int(total_ns[at]) if kind.fused else 0

    def rate(self, rated: Mapping[str, Rated]) -> None:
        for name, found in rated.items():
            self.classes[name].took_ns += found.took_ns
            self.classes[name].ideal_ns += found.ideal_ns

    def by_class(self) -> tuple[ClassTime, ...]:
        family = {kind.name: kind.family for kind in self.kinds.values()}
        found = (
            ClassTime(
                name=name,
                family=family[name],
                count=one.count,
                total_ns=one.total_ns,
                fused_ns=one.fused_ns,
                rated=Rated(took_ns=one.took_ns, ideal_ns=one.ideal_ns) if one.took_ns else None,
            )
            for name, one in self.classes.items()
        )
        return tuple(sorted(found, key=lambda one: (one.name == UNKNOWN, -one.total_ns, one.name)))

    def longest(self) -> tuple[NamedTime, ...]:
        ordered = sorted(self.names.items(), key=lambda pair: (-pair[1].total_ns, pair[0]))[:MOST_NAMED]
        return tuple(
            NamedTime(name=name, kind=self.kinds[name].name, count=one.count, total_ns=one.total_ns)
            for name, one in ordered
        )
