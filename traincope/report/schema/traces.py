"""What kernel traces say: of single steps that the recorder traced, or imported."""

from typing import TypedDict


class KernelClass(TypedDict):
    kind: str
    """nccl, gemm, attention, norm, ..., unknown: `traincope.analysis.kernel_classes`."""
    family: str
    """communication, compute, host, unknown."""
    count: int
    total_ns: int
    share_ratio: float
    """Of all kernels' time."""
    fused_ns: int
    """Part of it in products that communicate in the same kernel."""
    rated_ns: int | None
    """Part of it of which FLOPs and peak are known; null: none."""
    ideal_ns: float | None
    """What that part takes at peak."""
    inefficiency_ns: int | None
    """rated less ideal."""
    inefficiency_rank_hours: float | None
    """Likewise; a rank has one GPU."""
    inefficiency_money: float | None
    """In the price's currency; null without a price."""


class Kernel(TypedDict):
    name: str
    kind: str
    count: int
    total_ns: int


class Kernels(TypedDict):
    source: str
    """device: kernels; host: operators by their own time, where no kernel is known."""
    table_version: int
    """Of the table that sorts names into kinds."""
    ranks: list[int]
    steps: list[int]
    """Those that the recorder traced; empty for imported traces."""
    traces: int
    total_ns: int
    """Of all kernels; those that ran at the same time count each."""
    unknown_ratio: float
    """Share of it in no class."""
    classes: list[KernelClass]
    longest: list[Kernel]
    """Those ten that took most."""
    beside_communication_ns: int | None
    """What kernels took that ran while communication did; null for a host."""
    compared_ns: int | None
    """Part of it whose like also ran alone."""
    overlap_slowdown_ns: int | None
    """Sum over those of duration less the median of the same kernel alone; part of kernel inefficiency."""
    overlap_slowdown_rank_hours: float | None
    overlap_slowdown_money: float | None


class GpuEvents(TypedDict):
    compute: int
    communication: int
    memory: int


class GpuPartition(TypedDict):
    """span = compute + exposed_communication + exposed_memory + idle."""

    rank: int
    device: str
    """The GPU's number, as the trace has it."""
    traces: int
    gpu_events: GpuEvents
    span_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    exposed_memory_ns: int
    idle_ns: int
