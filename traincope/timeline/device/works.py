"""Works of one GPU in a trace: its kernels and copies, each with the host's call that launched it.

Without a GPU, the works are the operators of the training thread (`timeline.device.traced`).
"""

from dataclasses import dataclass

import numpy as np

from traincope.arrays import AFTER_ALL_NS, BEFORE_ALL_NS, Bools, Ints
from traincope.store.side_tables.traces import HOST_OPERATOR, KERNEL, MEMORY, Trace
from traincope.timeline.device.communication_kernels import communication_library

DEVICES = ("cuda", "hip", "xpu", "hpu", "mtia", "privateuse1")
RUNTIME = tuple(f"{device}_{layer}" for device in DEVICES for layer in ("runtime", "driver"))
"""Categories of the host's calls. ROCm's profiler mostly uses those of CUDA."""
NO_CALL = -1


def is_communication(trace: Trace) -> Bools:
    """Mark the communication kernels of a trace."""
    named = np.array([communication_library(name) is not None for name in trace.names] or [False])
    chosen: Bools = trace.of_category(KERNEL) & named[trace.name]
    return chosen


def gpus(trace: Trace) -> tuple[str, ...]:
    """Numbers of the GPUs in a trace, the one with the most kernels first."""
    chosen = trace.of_category(KERNEL, *MEMORY)
    counts = np.bincount(trace.lane[chosen], minlength=len(trace.lanes))
    sums: dict[str, int] = {}
    for lane, count in zip(trace.lanes, counts.tolist(), strict=True):
        if count:
            sums[lane.process] = sums.get(lane.process, 0) + count
    return tuple(sorted(sums, key=lambda gpu: (-sums[gpu], gpu)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Works:
    """Kernels and copies of one GPU: one entry each, in order of start, then of launch."""

    row: Ints
    """Row in the trace."""
    start_ns: Ints
    end_ns: Ints
    call: Ints
    """Row of the launching call; NO_CALL if the trace lacks it."""
    launched_ns: Ints
    """Begin of the launching call. Without one, the work's own start; or 1 ns before the trace, if the work precedes
    all others on its stream that have one: it was queued before the trace began.
    """
    returned_ns: Ints
    """End of the launching call. Without one, the same as `launched_ns`."""
    thread: Ints
    """Lane of the launching thread; NO_CALL without one. That of the training for works of the host itself."""
    compute: Bools
    communication: Bools

    def __len__(self) -> int:
        return len(self.row)

    @property
    def memory(self) -> Bools:
        return ~self.compute & ~self.communication

    @property
    def on_host(self) -> bool:
        """Return whether these are operators of a trace without a GPU (`timeline.device.traced`)."""
        return len(self) > 0 and bool(((self.call == NO_CALL) & (self.thread != NO_CALL)).all())

    def next_from(self, times_ns: Ints) -> Ints:
        """Return, for each instant, the work that starts next, at it or later; `len(self)` without one."""
        return np.searchsorted(self.start_ns, times_ns, side="left")

    def latest_end_ns(self, times_ns: Ints) -> Ints:
        """Return, for each instant, the latest end of a work until then; BEFORE_ALL_NS without one."""
        ends_ns = np.concatenate([[BEFORE_ALL_NS], np.sort(self.end_ns)])
        latest: Ints = ends_ns[np.searchsorted(ends_ns, times_ns, side="right") - 1]
        return latest


def works(trace: Trace, gpu: str) -> Works:
    """Collect the works of one GPU, and link them with their launches by the correlation."""
    on_gpu = np.array([lane.process == gpu for lane in trace.lanes] or [False])[trace.lane]
    rows = np.flatnonzero(on_gpu & trace.of_category(KERNEL, *MEMORY))
    call = _calls(trace, trace.correlation[rows])
    start_ns = trace.start_ns[rows]
    launched_ns = np.where(call == NO_CALL, start_ns, np.append(trace.start_ns, 0)[call])
    launched_ns[_queued_before(trace, rows, call)] = trace.start_ns[0] - 1 if len(trace) else 0
    returned_ns = np.where(call == NO_CALL, launched_ns, np.append(trace.end_ns, 0)[call])
    order = np.lexsort((trace.correlation[rows], launched_ns, start_ns))
    rows, call = rows[order], call[order]
    communication = is_communication(trace)[rows]
    return Works(
        row=rows,
        start_ns=trace.start_ns[rows],
        end_ns=trace.end_ns[rows],
        call=call,
        launched_ns=launched_ns[order],
        returned_ns=returned_ns[order],
        thread=np.where(call == NO_CALL, NO_CALL, np.append(trace.lane, NO_CALL)[call]),
        compute=trace.of_category(KERNEL)[rows] & ~communication,
        communication=communication,
    )


def _queued_before(trace: Trace, rows: Ints, call: Ints) -> Bools:
    """Mark the works without a call before the first one with a call on their stream."""
    first_ns = np.full(len(trace.lanes), BEFORE_ALL_NS)
    lanes, called = trace.lane[rows], call != NO_CALL
    first_ns[np.unique(lanes[called])] = AFTER_ALL_NS
    np.minimum.at(first_ns, lanes[called], trace.start_ns[rows[called]])
    queued: Bools = ~called & (trace.start_ns[rows] < first_ns[lanes])
    return queued


def _calls(trace: Trace, correlation: Ints) -> Ints:
    """Find the row of the call with each correlation; NO_CALL without one, or if 0 states that it is unknown."""
    calls = np.flatnonzero(trace.of_category(*RUNTIME) & (trace.correlation > 0))
    if not len(calls):
        return np.full(len(correlation), NO_CALL, dtype=np.int64)
    by_correlation = calls[np.argsort(trace.correlation[calls], kind="stable")]
    known = trace.correlation[by_correlation]
    at = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    return np.where(known[at] == correlation, by_correlation[at], NO_CALL)


def has_launches(trace: Trace) -> bool:
    """Return whether the trace has the call that launched some work. Without one, no idle time has a known cause."""
    works_of = trace.correlation[trace.of_category(KERNEL, *MEMORY)]
    return bool((_calls(trace, works_of) != NO_CALL).any())


def traces_host(trace: Trace) -> bool:
    """Return whether the trace has operators or calls of the host."""
    return bool(trace.of_category(HOST_OPERATOR, *RUNTIME).any())


def compute_stream(trace: Trace, works: Works) -> int:
    """Lane of the stream with the longest compute kernels in sum; of equal ones, that with the lowest number."""
    lanes = trace.lane[works.row[works.compute]]
    sums = np.zeros(len(trace.lanes), dtype=np.int64)
    np.add.at(sums, lanes, (works.end_ns - works.start_ns)[works.compute])
    return min(set(lanes.tolist()), key=lambda lane: (-sums[lane], _number(trace.lanes[lane].thread)), default=NO_CALL)


def _number(stream: str) -> int:
    return int(stream) if stream.isascii() and stream.isdecimal() else AFTER_ALL_NS
