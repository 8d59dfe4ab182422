"""Types of kernel traces, from kernel windows of the recorder or imported."""

from typing import Annotated, TypedDict

from traincope.report.schema.convert import result


class Roofline(TypedDict):
    """Operators of a class whose bytes, and FLOPs if they multiply, and peaks are known."""

    operators: int
    took_ns: int
    """Time of their kernels."""
    bytes: Annotated[int, result.num_bytes]
    """Bytes that they move at least."""
    bytes_per_second: float
    memory_ratio: float
    """Share of the memory's bandwidth; more than 1 if caches hold the data."""
    product_ns: int
    """Part of took in operators that multiply."""
    flops: float | None
    """null: no operator multiplies."""
    flops_per_second: float | None
    compute_ratio: float | None
    """Share of the peak FLOP/s."""
    flops_per_byte: Annotated[float | None, result.intensity]
    """Arithmetic intensity of the operators that multiply."""
    memory_bound_ns: int
    """Part of took in operators that memory bounds."""
    bound: str
    """compute or memory: the bound of most of took."""


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
    """The same in money, in the `currency` of the kernels; null without a price."""
    roofline: Roofline | None
    roofline_reason: str | None


class StepQueue(TypedDict):
    step: int
    mean: float
    empty_ratio: float


class QueueLength(TypedDict):
    """Launched works of one stream that wait to start, over the steps; without steps, over the trace."""

    rank: int
    stream: str
    computes: bool
    """true for the stream with the longest compute kernels in sum."""
    works: Annotated[int, result.num_works]
    unlaunched: Annotated[int, result.num_unlaunched]
    """Works whose launch is not in the trace."""
    span_ns: int
    mean: float | None
    """Waiting works, on average over the span."""
    empty_ratio: float | None
    """Share of the span in which none waits."""
    steps: list[StepQueue]
    reason: str | None


class Chain(TypedDict):
    """All chains of the same operators in the same phase."""

    operators: list[str]
    """The operator that launched each kernel, in order."""
    phase: str
    count: int
    kernels: Annotated[int, result.num_kernels]
    total_ns: int
    saved_bytes: Annotated[int | None, result.saving.num_bytes]
    """Bytes that fusion keeps off memory at most."""
    saved_ns: Annotated[int | None, result.saving.ns]
    """Time that it saves at most."""
    reason: str | None


class Unfused(TypedDict):
    """Consecutive pointwise, reduction and normalisation kernels that could be one kernel."""

    count: int
    kernels: Annotated[int, result.num_kernels]
    total_ns: int
    in_steps_ns: int
    """Part of total in steps."""
    steps_ns: int
    """Time of all steps; 0 without steps."""
    rated_ns: int
    """Part of total in chains with a known saving."""
    saved_bytes: Annotated[int | None, result.saving.num_bytes]
    saved_ns: Annotated[int | None, result.saving.ns]
    chains: list[Chain]
    """The ten with the most time."""


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
    beside_communication: Annotated[int | None, result.overlap.num_beside]
    """Kernels that ran during communication; null for host."""
    beside_communication_ns: Annotated[int | None, result.overlap.beside_ns]
    compared: Annotated[int | None, result.overlap.num_compared]
    """Kernels of which the same one also ran alone, at least 3 times."""
    compared_ns: Annotated[int | None, result.overlap.compared_ns]
    overlap_slowdown_ns: Annotated[int | None, result.overlap.slowdown_ns]
    """Sum over these of duration - median of the same kernel alone; part of kernel inefficiency. null: fewer than 3."""
    overlap_slowdown_rank_hours: float | None
    overlap_slowdown_money: float | None
    currency: str | None
    """Currency of all money in the kernels, as USD; null without a price."""
    queues: list[QueueLength]
    """One entry per stream of each trace; empty for host."""
    unfused: Unfused | None
    """null for host."""


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
