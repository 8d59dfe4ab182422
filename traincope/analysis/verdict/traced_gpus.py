"""Findings about GPUs that only kernel traces describe: why they did not compute."""

from collections.abc import Callable, Sequence

from traincope.analysis.confidence import MEDIUM, UNKNOWN
from traincope.analysis.kernels.gpu_partition import GpuPartition
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, percent
from traincope.timeline import Timeline
from traincope.timeline.device.traced import names_gpu

IDLE = (
    "Remove synchronisations (.item(), print), launch fewer and larger kernels (torch.compile, CUDA graphs, larger "
    "batches), and give the DataLoader more workers."
)
COMMUNICATION = (
    "Trace whole steps of all ranks (profiler.step(), torch 2.4 or newer) and import them together: only then are "
    "transfers and waits for other ranks apart."
)
MEMORY = "Copy from pinned memory on a separate stream, earlier, and copy less."
NO_GPU = Finding(
    kind=FindingKind.NO_STEPS,
    confidence=UNKNOWN,
    evidence="the traces contain no GPU events, so the GPUs' time is unknown",
    advice="Add ProfilerActivity.CUDA to the profiler's activities, and trace again.",
)
NEITHER = Finding(
    kind=FindingKind.NO_STEPS,
    confidence=UNKNOWN,
    evidence="the traces contain neither GPU events nor steps, so the use of time is unknown",
    advice=(
        "Call the profiler's step() after each step, and trace again; if the training uses GPUs, with "
        "ProfilerActivity.CUDA."
    ),
)


def untraced_gpus(timeline: Timeline) -> tuple[Finding, ...]:
    """NO_GPU for traces of a training on GPUs that contain no GPU events: times of its host say little."""
    traces = [trace for of_rank in timeline.traces.ranks.values() for trace in of_rank]
    return (NO_GPU,) if timeline.of_host_traces and any(map(names_gpu, traces)) else ()


def traced_gpus(timeline: Timeline, parts: Sequence[GpuPartition]) -> tuple[Finding, ...]:
    """Losses of traced time, the largest first; healthy without a loss; NO_STEPS without GPU events."""
    if not parts:
        traces = [trace for of_rank in timeline.traces.ranks.values() for trace in of_rank]
        return (NO_GPU if any(map(names_gpu, traces)) else NEITHER,)
    losses = (
        _loss(parts, FindingKind.GPU_IDLE, lambda part: part.idle_ns, "are idle", IDLE),
        _loss(
            parts,
            FindingKind.EXPOSED_COMMUNICATION,
            lambda part: part.exposed_communication_ns,
            "communicate (transfers or waits) and do not compute",
            COMMUNICATION,
            confidence=UNKNOWN,
        ),
        _loss(
            parts, FindingKind.EXPOSED_MEMORY, lambda part: part.exposed_memory_ns, "copy and do not compute", MEMORY
        ),
    )
    ranked = sorted((loss for loss in losses if loss[0] >= MIN_SHARE), key=lambda loss: -loss[0])
    return tuple(finding for _, finding in ranked) or (_healthy(parts),)


def _loss(
    parts: Sequence[GpuPartition],
    kind: FindingKind,
    lost: Callable[[GpuPartition], int],
    activity: str,
    advice: str,
    *,
    confidence: str = MEDIUM,
) -> tuple[float, Finding]:
    """Share of the traced time, and the finding. It names the rank that loses most if there are several."""
    share = _share(parts, lost)
    worst = max(parts, key=lambda part: _share([part], lost))
    of_worst = f", that of rank {worst.rank} {percent(_share([worst], lost))}" if len(parts) > 1 else ""
    evidence = f"the GPUs of the traces {activity} for {percent(share)} of the traced time{of_worst}"
    return share, Finding(kind=kind, ranks=_ranks(parts), confidence=confidence, evidence=evidence, advice=advice)


def _ranks(parts: Sequence[GpuPartition]) -> tuple[int, ...]:
    return tuple(sorted({part.rank for part in parts}))


def _share(parts: Sequence[GpuPartition], ns: Callable[[GpuPartition], int]) -> float:
    span_ns = sum(part.span_ns for part in parts)
    return sum(map(ns, parts)) / span_ns if span_ns else 0.0


def _healthy(parts: Sequence[GpuPartition]) -> Finding:
    compute = _share(parts, lambda part: part.compute_ns)
    return Finding(
        kind=FindingKind.HEALTHY,
        ranks=_ranks(parts),
        confidence=MEDIUM,
        evidence=f"the GPUs of the traces compute for {percent(compute)} of the traced time",
        advice="",
    )
