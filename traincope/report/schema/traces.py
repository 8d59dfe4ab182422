"""Types of kernel traces, from kernel windows of the recorder or imported."""

from typing import Annotated, Any, TypedDict

from traincope.analysis.kernels.kernels import NamedTime
from traincope.analysis.kernels.queue_length import QueueLength
from traincope.analysis.kernels.roofline import Roofline
from traincope.analysis.kernels.unfused import Unfused


class KernelClass(TypedDict):
    kind: str
    """nccl, gemm, attention, norm, ..., unknown: `traincope.analysis.kernels.kernel_classes`."""
    family: str
    """communication, compute, host, unknown."""
    count: int
    total_ns: int
    share_ratio: float
    """Share of the time of all kernels."""
    fused_ns: int
    """Part of it in kernels that both multiply and communicate."""
    rated_ns: int | None
    """Part of it with known FLOPs and peak; null: no part."""
    ideal_ns: float | None
    """Time of that part at peak."""
    inefficiency_ns: int | None
    """rated - ideal."""
    inefficiency_rank_hours: float | None
    """The same in rank-hours. A rank has one GPU."""
    inefficiency_money: float | None
    """The same in money, in the `currency` of the kernels; null without a price."""
    roofline: Annotated[Any, Roofline | None]
    roofline_reason: str | None


class Kernels(TypedDict):
    source: str
    """device: kernels; host: operators by self time, if no kernel was traced."""
    table_version: int
    """Version of the table that maps kernel names to kinds."""
    ranks: list[int]
    steps: list[int]
    """Steps of the kernel windows; empty for imported traces."""
    traces: int
    total_ns: int
    """Time of all kernels. Concurrent kernels count separately."""
    unknown_ratio: float
    """Unclassified share of it."""
    classes: list[KernelClass]
    longest: Annotated[Any, list[NamedTime]]
    """The ten kernels with the most time."""
    beside_communication: int | None
    """Kernels that ran during communication; null for host."""
    beside_communication_ns: int | None
    compared: int | None
    """Kernels of which the same one also ran alone, at least 3 times."""
    compared_ns: int | None
    overlap_slowdown_ns: int | None
    """Sum over these of duration - median of the same kernel alone; part of kernel inefficiency. null: fewer than 3."""
    overlap_slowdown_rank_hours: float | None
    overlap_slowdown_money: float | None
    currency: str | None
    """Currency of all money in the kernels, as USD; null without a price."""
    queues: Annotated[Any, list[QueueLength]]
    """One entry per stream of each trace; empty for host."""
    unfused: Annotated[Any, Unfused | None]
    """null for host."""
