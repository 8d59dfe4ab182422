"""Types of kernel traces, from kernel windows of the recorder or imported."""

from typing import Annotated, TypedDict

from traincope.report.schema.convert import result


class KernelClass(TypedDict):
    kind: Annotated[str, result.name]
    """nccl, gemm, attention, norm, ..., unknown: `traincope.analysis.kernels.kernel_classes`."""
    family: str
    """communication, compute, host, unknown."""
    count: int
    total_ns: int
    share_ratio: float
    """Share of the time of all kernels."""
    fused_ns: int
    """Part of it in kernels that both multiply and communicate."""
    rated_ns: Annotated[int | None, result.rated.took_ns]
    """Part of it with known FLOPs and peak; null: no part."""
    ideal_ns: Annotated[float | None, result.rated.ideal_ns]
    """Time of that part at peak."""
    inefficiency_ns: int | None
    """rated - ideal."""
    inefficiency_rank_hours: float | None
    """The same in rank-hours. A rank has one GPU."""
    inefficiency_money: float | None
    """The same in the price's currency; null without a price."""


class Kernel(TypedDict):
    name: str
    kind: str
    count: int
    total_ns: int


class Kernels(TypedDict):
    source: str
    """device: kernels; host: operators by self time, if no kernel was traced."""
    table_version: int
    """Version of the table that maps kernel names to kinds."""
    ranks: list[int]
    steps: list[int]
    """Steps of the kernel windows; empty for imported traces."""
    traces: Annotated[int, result.num_traces]
    total_ns: int
    """Time of all kernels. Concurrent kernels count separately."""
    unknown_ratio: float
    """Unclassified share of it."""
    classes: list[KernelClass]
    longest: list[Kernel]
    """The ten kernels with the most time."""
    beside_communication_ns: Annotated[int | None, result.overlap.beside_ns]
    """Time of kernels that ran during communication; null for host."""
    compared_ns: Annotated[int | None, result.overlap.compared_ns]
    """Part of it in kernels that also ran alone."""
    overlap_slowdown_ns: Annotated[int | None, result.overlap.slowdown_ns]
    """Sum over these of duration - median of the same kernel alone; part of kernel inefficiency."""
    overlap_slowdown_rank_hours: float | None
    overlap_slowdown_money: float | None


class GpuEvents(TypedDict):
    compute: Annotated[int, result.num_compute]
    communication: Annotated[int, result.num_communication]
    memory: Annotated[int, result.num_memory]


class GpuPartition(TypedDict):
    """span = compute + exposed_communication + exposed_memory + idle."""

    rank: int
    device: str
    """The GPU's number, as the trace has it."""
    traces: Annotated[int, result.num_traces]
    gpu_events: GpuEvents
    span_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    exposed_memory_ns: int
    idle_ns: int
