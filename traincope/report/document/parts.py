"""Single parts of the document: findings, kernel traces."""

from collections.abc import Sequence

from traincope.analysis import (
    ClassTime,
    Finding,
    Kernels,
    QueueLength,
    Unfused,
    rank_hours,
)
from traincope.analysis.kernels.kernel_classes import VERSION
from traincope.explanations import explanations
from traincope.report import schema
from traincope.report.document.costs import rank_hours_of


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
        queues=schema.plain(queues),
        unfused=schema.plain(unfused),
    )


def _class(each: ClassTime, *, total_ns: int) -> schema.KernelClass:
    return schema.convert(
        each,
        schema.KernelClass,
        share_ratio=each.total_ns / total_ns if total_ns else 0.0,
        inefficiency_rank_hours=rank_hours_of(each.inefficiency_ns),
        inefficiency_money=None,
    )
