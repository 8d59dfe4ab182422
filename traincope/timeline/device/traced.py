"""The GPU of each trace of a rank, or its host without a GPU: its works and its steps.

The works of a host are the outermost operators of the thread that marks the steps, and the ranges in which a backend
without a GPU communicates. That thread is the one that computes, so its operators need no launch. Those of an activity,
such as a DataLoader, belong to it. Calls that only hand a collective to a backend are no works.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincope.arrays import Bools, Ints
from traincope.events import Phase
from traincope.ingest.traces.collectives import ANNOTATION_OF
from traincope.store.side_tables.traces import HOST_OPERATOR, PYTHON_FUNCTION, Trace
from traincope.timeline.device.ranges import ANNOTATION, AUTOGRAD, NAMED, activity_ranges, phase_ranges
from traincope.timeline.device.steps import PROFILER_STEP, DeviceSteps, device_steps, like_steps, stepping_thread
from traincope.timeline.device.works import NO_CALL, Works, gpus, works
from traincope.timeline.intervals.painting import ABSENT

HANDS_OVER = re.compile(
    r"(_?c10d(_functional)?|torch_ccl|oneccl_bindings_for_pytorch)::.*|record_param_comms", re.DOTALL
)
"""Operators that hand a collective to a backend, or wait for it there."""
ON_HOST = re.compile(r"(gloo|ucc|mpi|oneccl|ccl):\w+")
"""Ranges in which a backend without a GPU communicates."""
LAUNCHES = re.compile(r"(nccl|rccl):\w+")
"""Ranges in which one for GPUs launches its kernels."""
ON_GPU = re.compile(r"\S*(cuda|cudnn|hip(blas|Memcpy|Launch)|miopen)\S*", re.IGNORECASE)
"""Operators and calls that only a training on a GPU has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGpu:
    """The GPU with the most kernels in a trace; without any, the host."""

    rank: int
    trace: Trace
    works: Works
    steps: DeviceSteps
    problem: str | None
    """Why it gives no times; None if it does."""

    @property
    def has_steps(self) -> bool:
        return len(self.steps.number) > 0 and bool(self.works.compute.any())


def traced_gpus(traces: Sequence[Trace], *, rank: int, marker: str | None) -> Iterator[TracedGpu]:
    """Yield the GPU of each trace of a rank, of those that have one."""
    yield from (each for each in traced(traces, rank=rank, marker=marker) if gpus(each.trace))


def traced(traces: Sequence[Trace], *, rank: int, marker: str | None) -> Iterator[TracedGpu]:
    """Yield the GPU of each trace of a rank, or its host.

    Steps that a trace numbers itself follow those of the traces before it.
    """
    seen: set[int] = set()
    for trace in traces:
        on_gpus = [works(trace, number) for number in gpus(trace)[:1]]
        for found in on_gpus or [host_works(trace, marker=marker)]:
            gpu = TracedGpu(
                rank=rank,
                trace=trace,
                works=found,
                steps=device_steps(trace, found, marker=marker),
                problem=None
                if trace.info.lost is None
                else f"{trace.info.source} is cut, so it gives no ledger: lost kernels would seem idle time",
            )
            if gpu.problem is not None or not gpu.has_steps:
                yield gpu
                continue
            if gpu.steps.own_numbers:
                numbers = gpu.steps.number + max(seen, default=0)
                gpu = replace(gpu, steps=replace(gpu.steps, number=numbers))
            if seen & set(gpu.steps.number.tolist()):
                repeated = f"{trace.info.source} repeats steps of rank {rank}, so its own are left out"
                yield replace(gpu, problem=repeated)
                continue
            seen |= set(gpu.steps.number.tolist())
            yield gpu


def names_gpu(trace: Trace) -> bool:
    """Return whether a trace shows that the training uses a GPU, which need not be traced itself."""
    if trace.info.devices or gpus(trace) or any(map(LAUNCHES.fullmatch, trace.names)):
        return True
    called = np.unique(trace.name[~trace.of_category(ANNOTATION, PYTHON_FUNCTION)]).tolist()
    return any(ON_GPU.fullmatch(trace.names[number]) for number in called)


def why_no_steps(gpu: TracedGpu, *, marker: str | None) -> str:
    """Return why a trace gives no steps, and the remedy."""
    source = f"{gpu.trace.info.source} of rank {gpu.rank}"
    if len(gpu.steps.number):
        return f"{source} marks steps, but contains nothing that computes"
    if marker is not None:
        return f"{source} has no range named {marker}; give another --step-marker"
    like = like_steps(gpu.trace)
    instead = "" if like is None else f"; or import it again with --step-marker {shlex.quote(like)}"
    return f"{source} has no marks of steps: call the profiler's step() after each step, and trace again{instead}"


def host_works(trace: Trace, *, marker: str | None = None) -> Works:
    """Collect the works of a host. They are absent without steps."""
    lane = stepping_thread(trace, marker=marker)
    computes, sends = _outermost(trace, _operators(trace, lane, marker=marker)), _transfers(trace, lane)
    rows = np.sort(np.concatenate([computes, sends]))
    return Works(
        row=rows,
        start_ns=trace.start_ns[rows],
        end_ns=trace.end_ns[rows],
        call=np.full(len(rows), NO_CALL, dtype=np.int64),
        launched_ns=trace.start_ns[rows],
        returned_ns=trace.start_ns[rows],
        thread=np.full(len(rows), lane, dtype=np.int64),
        compute=np.isin(rows, computes),
        communication=np.isin(rows, sends),
    )


def _operators(trace: Trace, lane: int, *, marker: str | None) -> Bools:
    """Mark the operators of a thread that compute. torch before 1.13 wrote annotations as operators, without a `::`."""
    chosen: Bools = trace.of_category(HOST_OPERATOR) & (trace.lane == lane)
    every_name = trace.of_category(ANNOTATION).any()
    named = [
        (every_name or "::" in name)
        and name != marker
        and not any(pattern.fullmatch(name) for pattern in (HANDS_OVER, ANNOTATION_OF, PROFILER_STEP))
        for name in trace.names
    ]
    chosen &= np.array(named or [False])[trace.name]
    automatic = np.array([name.startswith(AUTOGRAD) for name in trace.names] or [False])[trace.name]
    ranges = phase_ranges(trace)
    chosen[ranges.row[~automatic[ranges.row]]] = False
    return chosen & ~_in_activity(trace, lane)


def _in_activity(trace: Trace, lane: int) -> Bools:
    """Mark what begins within an activity of the thread, but not within an evaluation."""
    activities = activity_ranges(trace)
    at = activities.innermost(lane, trace.start_ns)
    within: Bools = (at != ABSENT) & (np.append(activities.phase, Phase.NONE)[at] != Phase.EVALUATION)
    return within


def _outermost(trace: Trace, chosen: Bools) -> Ints:
    """Rows of the chosen events of one thread that lie in no other."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((-trace.end_ns[rows], trace.start_ns[rows]))]
    reach = np.maximum.accumulate(trace.end_ns[rows])
    outermost: Ints = rows[np.append(True, trace.start_ns[rows][1:] >= reach[:-1])[: len(rows)]]
    return outermost


def _transfers(trace: Trace, lane: int) -> Ints:
    """Rows of the ranges in which a backend communicates on another thread."""
    named = np.array([ON_HOST.fullmatch(name) is not None for name in trace.names] or [False])
    return np.flatnonzero(trace.of_category(*NAMED) & named[trace.name] & (trace.lane != lane) & (lane != NO_CALL))
