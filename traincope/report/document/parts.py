"""Single parts of the document: findings, the critical path, kernel traces."""

from collections import defaultdict
from collections.abc import Sequence

from traincope.analysis import (
    ClassTime,
    CriticalPath,
    Finding,
    GpuPartition,
    Kernels,
    QueueLength,
    StepPath,
    Unfused,
    rank_hours,
)
from traincope.analysis.kernels.kernel_classes import VERSION
from traincope.explanations import explanations
from traincope.report import schema
from traincope.report.document.costs import rank_hours_of

MAX_SEGMENTS = 2_000
"""A longer path is too long to read in a document."""


def finding_of(finding: Finding, *, wall_ns: int) -> schema.Finding:
    """One finding, with its gain also in rank-hours.

    `wall_ns` is the wall time of all ranks and steps of the run. With 0 the rank-hours are unknown.
    """
    gain = finding.estimated_gain_ratio
    return schema.convert(
        finding,
        schema.Finding,
        page=explanations()[finding.kind].place,
        estimated_gain_rank_hours=None if gain is None or not wall_ns else rank_hours(gain * wall_ns),
        estimated_gain_money=None,
    )


def critical_path(path: CriticalPath) -> schema.CriticalPath:
    """The critical path, summed by term and by rank, and the segments of the step of median length."""
    ranks: dict[int, dict[str, int]] = defaultdict(dict)
    for (rank, term), ns in path.shares().items():
        ranks[rank][term] = ns
    shown = path.median_step if path.steps else None
    return schema.convert(
        path,
        schema.CriticalPath,
        steps=len(path.steps),
        terms=path.terms(),
        ranks=[
            schema.RankPath(rank=rank, ns=sum(rank_terms.values()), terms=rank_terms)
            for rank, rank_terms in sorted(ranks.items(), key=lambda item: (-sum(item[1].values()), item[0]))
        ],
        step=None if shown is None else shown.number,
        segments=None if shown is None or len(shown.segments) > MAX_SEGMENTS else _segments(shown),
    )


def _segments(step: StepPath) -> list[schema.Segment]:
    return [
        schema.convert(segment, schema.Segment, start_ns=segment.start_ns - step.start_ns) for segment in step.segments
    ]


def kernels(traced: Kernels, queues: Sequence[QueueLength], unfused: Unfused | None) -> schema.Kernels:
    """Kernel times, summed over all traces; queues of streams; chains of kernels."""
    return schema.convert(
        traced,
        schema.Kernels,
        table_version=VERSION,
        classes=[_class(each, total_ns=traced.total_ns) for each in traced.classes],
        overlap_slowdown_rank_hours=None if traced.overlap is None else rank_hours_of(traced.overlap.slowdown_ns),
        overlap_slowdown_money=None,
        currency=None,
        queues=[schema.convert(queue, schema.QueueLength) for queue in queues],
        unfused=None if unfused is None else schema.convert(unfused, schema.Unfused),
    )


def _class(each: ClassTime, *, total_ns: int) -> schema.KernelClass:
    return schema.convert(
        each,
        schema.KernelClass,
        share_ratio=each.total_ns / total_ns if total_ns else 0.0,
        inefficiency_rank_hours=rank_hours_of(each.inefficiency_ns),
        inefficiency_money=None,
    )


def gpu(part: GpuPartition) -> schema.GpuPartition:
    """The time of one GPU of one rank."""
    return schema.convert(part, schema.GpuPartition, gpu_events=schema.convert(part, schema.GpuEvents))
