"""Queue length: how many launched works of a stream wait to start, over time.

A work waits from the begin of the call that launched it to its own start. This is HolisticTraceAnalysis' queue length
(`hta/analyzers/trace_counters.py`), averaged over time instead of over changes. A work that was launched before the
trace waits from the begin of the trace on. All works of a CUDA graph wait from the graph's launch on.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from traincope.analysis.efficiency.work import ENOUGH_COVERAGE
from traincope.arrays import Bools, Ints
from traincope.timeline.device.traced import TracedGpu
from traincope.timeline.device.works import NO_CALL, compute_stream, traces_host
from traincope.timeline.intervals.union import Union
from traincope.units import share


@dataclass(frozen=True, slots=True, kw_only=True)
class StepQueue:
    """Queue of a stream in one step."""

    step: int
    mean: float
    empty_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLength:
    """Queue of one stream of a rank's GPU over the steps of a trace; without steps, from its first work to its last."""

    rank: int
    stream: str
    """The stream's number in the trace."""
    computes: bool
    """True for the compute stream: the one with the longest compute kernels in sum."""
    num_works: int
    num_unlaunched: int
    """Works whose launch is not in the trace, although the trace contains earlier ones of the stream."""
    span_ns: int
    mean: float | None
    """Works that wait, on average over the span; None with a reason."""
    empty_ratio: float | None
    """Share of the span in which no work waits."""
    steps: tuple[StepQueue, ...]
    """Empty without steps, or with a reason."""
    reason: str | None


def queue_lengths(gpus: Iterable[TracedGpu]) -> tuple[QueueLength, ...]:
    """Measure the queue of each stream of each GPU that gives times."""
    return tuple(length for gpu in gpus if gpu.problem is None for length in _of_gpu(gpu))


def _of_gpu(gpu: TracedGpu) -> Iterator[QueueLength]:
    steps, works = gpu.steps, gpu.works
    if gpu.has_steps:
        begins_ns, ends_ns = steps.start_ns, steps.end_ns
    else:
        begins_ns, ends_ns = works.start_ns[:1], np.array([works.end_ns.max()])
    if not (ends_ns - begins_ns).sum():
        return
    main, lanes = compute_stream(gpu.trace, works), gpu.trace.lane[works.row]
    for lane in np.unique(lanes).tolist():
        yield _of_stream(gpu, lanes == lane, lane=lane, computes=lane == main, begins_ns=begins_ns, ends_ns=ends_ns)


def _of_stream(
    gpu: TracedGpu, on_stream: Bools, *, lane: int, computes: bool, begins_ns: Ints, ends_ns: Ints
) -> QueueLength:
    works = gpu.works
    started_ns = works.start_ns[on_stream]
    launched_ns = np.minimum(works.launched_ns[on_stream], started_ns)
    unlaunched = (works.call[on_stream] == NO_CALL) & (launched_ns == started_ns)
    known = unlaunched.mean() <= 1 - ENOUGH_COVERAGE
    span_ns = ends_ns - begins_ns
    waited_ns = _waited_ns(launched_ns, started_ns, ends_ns) - _waited_ns(launched_ns, started_ns, begins_ns)
    empty_ns = span_ns - Union.of(launched_ns, started_ns).covered_ns(begins_ns, ends_ns)
    numbers = gpu.steps.number.tolist() if known and gpu.has_steps else []
    in_steps = zip(numbers, waited_ns.tolist(), empty_ns.tolist(), span_ns.tolist(), strict=False)
    return QueueLength(
        rank=gpu.rank,
        stream=gpu.trace.lanes[lane].thread,
        computes=computes,
        num_works=len(started_ns),
        num_unlaunched=int(unlaunched.sum()),
        span_ns=int(span_ns.sum()),
        mean=float(waited_ns.sum() / span_ns.sum()) if known else None,
        empty_ratio=float(empty_ns.sum() / span_ns.sum()) if known else None,
        steps=tuple(
            StepQueue(step=step, mean=waited / span, empty_ratio=empty / span)
            for step, waited, empty, span in in_steps
            if span
        ),
        reason=None if known else _why_unknown(gpu, float(unlaunched.mean())),
    )


def _why_unknown(gpu: TracedGpu, unlaunched_ratio: float) -> str:
    also_host = "" if traces_host(gpu.trace) else " the host too (ProfilerActivity.CPU),"
    return (
        f"the trace lacks the launches of {share(unlaunched_ratio)} of the stream's works; "
        f"trace{also_host} from before the first step on"
    )


def _waited_ns(launched_ns: Ints, started_ns: Ints, times_ns: Ints) -> Ints:
    """Return the total time that works have waited before each instant."""
    return _since(launched_ns, times_ns) - _since(started_ns, times_ns)


def _since(events_ns: Ints, times_ns: Ints) -> Ints:
    """Return the sum, over the events before each instant, of the time since the event."""
    base_ns = min(events_ns.min(), times_ns.min())
    ordered = np.sort(events_ns - base_ns)
    before = np.searchsorted(ordered, times_ns - base_ns)
    summed: Ints = before * (times_ns - base_ns) - np.concatenate([[0], np.cumsum(ordered)])[before]
    return summed
