"""What kernel traces say -> its part of the document."""

from traincope.analysis import ClassTime, GpuPartition, Kernels
from traincope.analysis.kernel_classes import VERSION
from traincope.report import schema
from traincope.report.priced import hours_of


def kernels(found: Kernels) -> schema.Kernels:
    """Sums over all traces."""
    overlap = found.overlap
    return schema.Kernels(
        source=found.source.value,
        table_version=VERSION,
        ranks=list(found.ranks),
        steps=list(found.steps),
        traces=found.num_traces,
        total_ns=found.total_ns,
        unknown_ratio=found.unknown_ratio,
        classes=[_class(one, total_ns=found.total_ns) for one in found.classes],
        longest=[
            schema.Kernel(name=one.name, kind=one.kind, count=one.count, total_ns=one.total_ns) for one in found.longest
        ],
        beside_communication_ns=None if overlap is None else overlap.beside_ns,
        compared_ns=None if overlap is None else overlap.compared_ns,
        overlap_slowdown_ns=None if overlap is None else overlap.slowdown_ns,
        overlap_slowdown_rank_hours=None if overlap is None else hours_of(overlap.slowdown_ns),
        overlap_slowdown_money=None,
    )


def _class(one: ClassTime, *, total_ns: int) -> schema.KernelClass:
    return schema.KernelClass(
        kind=one.name,
        family=one.family.value,
        count=one.count,
        total_ns=one.total_ns,
        share_ratio=one.total_ns / total_ns if total_ns else 0.0,
        fused_ns=one.fused_ns,
        rated_ns=None if one.rated is None else one.rated.took_ns,
        ideal_ns=None if one.rated is None else one.rated.ideal_ns,
        inefficiency_ns=one.inefficiency_ns,
        inefficiency_rank_hours=hours_of(one.inefficiency_ns),
        inefficiency_money=None,
    )


def gpu(part: GpuPartition) -> schema.GpuPartition:
    """One GPU of one rank."""
    return schema.GpuPartition(
        rank=part.rank,
        device=part.device,
        traces=part.num_traces,
        gpu_events=schema.GpuEvents(
            compute=part.num_compute, communication=part.num_communication, memory=part.num_memory
        ),
        span_ns=part.span_ns,
        compute_ns=part.compute_ns,
        communication_ns=part.communication_ns,
        exposed_communication_ns=part.exposed_communication_ns,
        exposed_memory_ns=part.exposed_memory_ns,
        idle_ns=part.idle_ns,
    )
