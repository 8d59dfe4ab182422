"""Findings about GPUs that only kernel traces describe: why they did not compute, and whether that is known."""

from collections.abc import Callable, Sequence

from traincope.analysis.confidence import MEDIUM, UNKNOWN
from traincope.analysis.kernels.gpu_partition import GpuPartition
from traincope.analysis.kernels.kernel_classes import UNKNOWN as UNCLASSIFIED
from traincope.analysis.kernels.kernels import Kernels, Source
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, percent
from traincope.analysis.verdict.losses.copies import copy_advice
from traincope.timeline import Timeline
from traincope.timeline.device.communication_kernels import bare_name
from traincope.timeline.device.traced import names_gpu

IDLE = (
    "Remove synchronisations (.item(), print), launch fewer and larger kernels (torch.compile, CUDA graphs, larger "
    "batches), and give the DataLoader more workers."
)
COMMUNICATION = (
    "Trace whole steps of all ranks (profiler.step(), torch 2.4 or newer) and import them together: only then are "
    "transfers and waits for other ranks apart."
)
MOSTLY = 0.5
"""Share of the kernels' time from which unclassified kernels hide what the GPUs do."""
MAX_NAME = 60
"""Most characters of a kernel's name."""
LOOK_UP = (
    "Find out what the longest kernels of the class `unknown` do. If they communicate, their time is communication and "
    "not compute."
)
NO_GPU = Finding(
    kind=FindingKind.NO_STEPS,
    confidence=UNKNOWN,
    evidence="the traces contain no GPU events, so the GPUs' time is unknown",
    advice="Add ProfilerActivity.CUDA to the profiler's activities, and trace again.",
)
CUT = Finding(
    kind=FindingKind.NO_STEPS,
    confidence=UNKNOWN,
    evidence="the traces are cut, so the use of time is unknown: what is lost would seem idle time",
    advice="Import whole traces. Wait until the profiler has written a trace; trace fewer steps if the disk is full.",
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
    traces = (trace for of_rank in timeline.traces.ranks.values() for trace in of_rank)
    return (NO_GPU,) if timeline.of_host_traces and any(map(names_gpu, traces)) else ()


def unclassified_kernels(timeline: Timeline, kernels: Kernels | None) -> tuple[Finding, ...]:
    """Finding of imported traces whose kernels mostly have names that tell nothing.

    Such a kernel counts as compute, and may communicate. A recorder knows the collectives without their kernels.
    """
    ratio = _unclassified_ratio(timeline, kernels)
    if kernels is None or ratio < MOSTLY:
        return ()
    longest = next((each for each in kernels.longest if each.kind == UNCLASSIFIED), None)
    name = "" if longest is None else bare_name(longest.name)[:MAX_NAME]
    such_as = f", such as {name}" if name else ""
    finding = Finding(
        kind=FindingKind.UNCLASSIFIED_KERNELS,
        ranks=kernels.ranks,
        confidence=UNKNOWN,
        evidence=(
            f"{percent(ratio)} of the kernels' time is in kernels of unknown purpose{such_as}: they count as compute, "
            "but may communicate"
        ),
        advice=LOOK_UP,
    )
    return (finding,)


def partly_unclassified(timeline: Timeline, kernels: Kernels | None) -> str:
    """End of a sentence about compute, if a part of the kernels may be something else."""
    ratio = _unclassified_ratio(timeline, kernels)
    return f"; {percent(ratio)} of the kernels' time is of unknown purpose" if ratio >= MIN_SHARE else ""


def _unclassified_ratio(timeline: Timeline, kernels: Kernels | None) -> float:
    by_name = timeline.run.info.imported and kernels is not None and kernels.source is Source.DEVICE
    return kernels.unknown_ratio if kernels is not None and by_name else 0.0


def traced_gpus(
    timeline: Timeline, parts: Sequence[GpuPartition], kernels: Kernels | None = None
) -> tuple[Finding, ...]:
    """Losses of traced time, the largest first; healthy without a loss; NO_STEPS without GPU events or whole traces."""
    if not parts:
        traces = (trace for of_rank in timeline.traces.ranks.values() for trace in of_rank)
        return (NO_GPU if any(map(names_gpu, traces)) else NEITHER,)
    cut = {rank for rank, traces in timeline.traces.ranks.items() if any(trace.info.lost for trace in traces)}
    parts = [part for part in parts if part.rank not in cut]
    if not parts:
        return (CUT,)
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
            parts,
            FindingKind.EXPOSED_MEMORY,
            lambda part: part.exposed_memory_ns,
            "copy and do not compute",
            copy_advice(timeline, [part.rank for part in parts]),
        ),
    )
    ranked = sorted((loss for loss in losses if loss[0] >= MIN_SHARE), key=lambda loss: -loss[0])
    found = (*(finding for _, finding in ranked), *unclassified_kernels(timeline, kernels))
    return found or (_healthy(parts, partly_unclassified(timeline, kernels)),)


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


def _healthy(parts: Sequence[GpuPartition], but: str) -> Finding:
    compute = _share(parts, lambda part: part.compute_ns)
    return Finding(
        kind=FindingKind.HEALTHY,
        ranks=_ranks(parts),
        confidence=MEDIUM,
        evidence=f"the GPUs of the traces compute for {percent(compute)} of the traced time{but}",
        advice="",
    )
