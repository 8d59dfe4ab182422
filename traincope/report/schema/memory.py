"""Types of memory: measures, splits by use, grown tensors, shortages, imported snapshots."""

from typing import Annotated, TypedDict

from traincope.report.schema.convert import result


class MemoryUse(TypedDict):
    rank: int
    measure: str
    last_bytes: int
    peak_bytes: int
    phases: dict[str, int]
    """Phase -> median bytes at its end."""
    growth_bytes_per_step: float | None
    leak: bool | None
    """The growth is steady and large; null: not judged, because of too few samples or of a measure that never falls."""
    exhausted_at_step: int | None
    """Step by which the growth exhausts the memory, at the latest; null: no leak, or the memory's size is unknown."""
    exhausted_in_ns: int | None
    """Time until then after the last sample, at the rate of the samples."""


class MemorySplit(TypedDict):
    """A rank's memory at one instant. The known parts, with `unknown_bytes`, sum to `total_bytes`."""

    rank: int
    step: int | None
    phase: str | None
    """The phase that had just ended; null: between steps."""
    measure: str
    """Measure of the total: `reserved` on a GPU, `resident` on a CPU."""
    total_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    buffers_bytes: int
    """Communication buffers."""
    activations_bytes: int | None
    fragmentation_bytes: int | None
    unknown_bytes: int | None
    reason: str | None
    """Reason why a part is null."""


class GrownTensors(TypedDict):
    """Tensors of one shape, dtype and device that became more on a rank."""

    rank: int
    first_step: int
    last_step: int
    shape: list[int]
    dtype: str
    device: str
    tensors: int
    bytes: int
    held_by: str | None
    has_graph: bool | None
    """One of them holds the graph of its step; null: not known."""


class OutOfMemory(TypedDict):
    """Post-mortem of a rank that ran out of memory."""

    rank: int
    step: int | None
    phase: str | None
    by_kernel: bool
    """The kernel killed the rank, as far as the host's memory shows."""
    request_bytes: int | None
    limit_bytes: int | None
    free_bytes: int | None
    split: MemorySplit | None
    use: str | None
    """The use to which the shortage is put down."""
    grown_bytes: int | None
    """Its growth since the first steps; null: it is the largest use."""
    remedy: Annotated[str, result.remedy.text]
    saved_bytes: Annotated[int | None, result.remedy.saved_bytes]
    """Bytes that the remedy saves, by formula; null: unknown."""


class AllocationSite(TypedDict):
    place: str
    stack: list[str]
    part: str
    """`optimizer`, `backward`, `distributed`, `model`, or empty without a stack."""
    bytes: int
    blocks: int


class MemorySnapshot(TypedDict):
    """torch's allocator on one GPU, from an imported snapshot. Reserved = allocated + awaiting free + inactive."""

    rank: int
    source: str
    device: Annotated[int, result.memory.device]
    segments: Annotated[int, result.memory.segments]
    expandable_segments: Annotated[int, result.memory.expandable_segments]
    reserved_bytes: Annotated[int, result.memory.reserved_bytes]
    allocated_bytes: Annotated[int, result.memory.allocated_bytes]
    requested_bytes: Annotated[int, result.memory.requested_bytes]
    awaiting_free_bytes: Annotated[int, result.memory.awaiting_free_bytes]
    inactive_bytes: Annotated[int, result.memory.inactive_bytes]
    largest_inactive_bytes: Annotated[int, result.memory.largest_inactive_bytes]
    peak_bytes: Annotated[int | None, result.memory.peak_bytes]
    """Largest allocation in the history; null without one."""
    times_us: Annotated[list[int], result.memory.times_us]
    history_bytes: Annotated[list[int], result.memory.history_bytes]
    out_of_memory_bytes: Annotated[list[int], result.memory.out_of_memory_bytes]
    """Requests that failed."""
    sites: Annotated[list[AllocationSite], result.memory.sites]
    """Live allocations by the training's line, those with most bytes first."""
