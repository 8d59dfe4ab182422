"""What is to be said of GPUs of which only kernel traces are known: why they did not compute."""

from collections.abc import Callable, Sequence

from traincope.analysis.findings import MEDIUM, UNKNOWN, WORTH_SAYING, Finding, FindingKind, percent
from traincope.analysis.gpu_partition import GpuPartition

IDLE = (
    "the host does not keep up or waits: look for synchronisations (.item(), print), small kernels "
    "(torch.compile, CUDA graphs, larger batches) and the data loader"
)
COMMUNICATION = "overlap it (prefetch the next layer, larger buckets), send fewer bytes, or use a faster link"
MEMORY = "copy from pinned memory on a stream of its own, earlier; copy less"
NO_GPU = Finding(
    kind=FindingKind.NO_STEPS,
    confidence=UNKNOWN,
    evidence="the traces hold no event of a GPU, so there is nothing to say about its time",
    advice="trace with ProfilerActivity.CUDA among the activities",
)


def traced_gpus(parts: Sequence[GpuPartition]) -> tuple[Finding, ...]:
    """The largest losses first, or that there is none; or that no trace holds an event of a GPU."""
    if not parts:
        return (NO_GPU,)
    losses = (
        _loss(parts, FindingKind.GPU_IDLE, lambda part: part.idle_ns, "run nothing", IDLE),
        _loss(
            parts,
            FindingKind.EXPOSED_COMMUNICATION,
            lambda part: part.exposed_communication_ns,
            "communicate and do not compute",
            COMMUNICATION,
        ),
        _loss(
            parts, FindingKind.EXPOSED_MEMORY, lambda part: part.exposed_memory_ns, "copy and do not compute", MEMORY
        ),
    )
    found = sorted((loss for loss in losses if loss[0] >= WORTH_SAYING), key=lambda loss: -loss[0])
    return tuple(finding for _, finding in found) or (_healthy(parts),)


def _loss(
    parts: Sequence[GpuPartition], kind: FindingKind, lost: Callable[[GpuPartition], int], what: str, advice: str
) -> tuple[float, Finding]:
    """Its share of the traced time, and the rank that loses most where it is one of several."""
    share = _share(parts, lost)
    worst = max(parts, key=lambda part: _share([part], lost))
    of_worst = f", that of rank {worst.rank} {percent(_share([worst], lost))}" if len(parts) > 1 else ""
    evidence = f"the GPUs of the traces {what} for {percent(share)} of the traced time{of_worst}"
    return share, Finding(kind=kind, ranks=_ranks(parts), confidence=MEDIUM, evidence=evidence, advice=advice)


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
