"""Type of the object that `report --format json` prints. The text report shows the same object.

All top-level keys are always present. null means no evidence, never 0. Times are integer nanoseconds (`_ns`), ratios
are floats where 1 is the whole (`_ratio`), and sums are over the ranks and the counted steps, i.e. without
`run.excluded_steps`.
"""

from typing import TypedDict

from traincope.report.schema.job import (
    BackgroundSaves,
    DataOrder,
    Fault,
    Finding,
    Goodput,
    Hang,
    RankClock,
    Recorder,
    Run,
    Slowdown,
    StateChecks,
)
from traincope.report.schema.memory import GrownTensors, MemorySnapshot, MemorySplit, MemoryUse, OutOfMemory
from traincope.report.schema.path import CriticalPath
from traincope.report.schema.reliability import Reliability
from traincope.report.schema.steps import (
    Bubble,
    Energy,
    HostShortage,
    Ledger,
    Operation,
    SampledWindow,
    Stragglers,
    TermCauses,
    Utilization,
)
from traincope.report.schema.traces import GpuPartition, Kernels

SCHEMA_VERSION = 3


class Document(TypedDict):
    schema_version: int
    run: Run
    verdict: list[Finding]
    ledger: Ledger | None
    causes: list[TermCauses]
    """Causes within the terms; empty without counted steps."""
    utilization: Utilization
    energy: Energy
    comm: list[Operation] | None
    bubble: Bubble | None
    stragglers: Stragglers | None
    slowdown: Slowdown | None
    """null: the run was not imported from a table of operations."""
    host_shortages: list[HostShortage]
    """Shortages that several ranks of a host share, the worst first."""
    faults: list[Fault]
    hangs: list[Hang]
    """Hangs and mismatched collectives, the first cause first."""
    goodput: Goodput | None
    reliability: Reliability | None
    """null where goodput is, but a logbook has it."""
    background_saves: BackgroundSaves | None
    """null: no background save has ended in the last attempt."""
    sampled_stacks: list[SampledWindow]
    """Windows in which several ranks sampled their Python stacks."""
    memory: list[MemoryUse] | None
    """One entry per rank and measure."""
    memory_split: list[MemorySplit] | None
    """One entry per rank, when most memory was in use; null: the tensors were not counted."""
    grown_tensors: list[GrownTensors] | None
    """null: no rank's memory grew in a job with an agent."""
    out_of_memory: list[OutOfMemory] | None
    """null: no rank ended by a shortage of memory."""
    memory_snapshots: list[MemorySnapshot] | None
    """One entry per imported snapshot and GPU."""
    kernels: Kernels | None
    critical_path: CriticalPath | None
    data_order: DataOrder | None
    """null: the run did not restart, or no batch of a DataLoader was recorded."""
    state_checks: StateChecks | None
    """null: the training's state was not checked for corruption."""
    gpu_partition: list[GpuPartition] | None
    """One entry per rank and GPU of its kernel traces."""
    clock: list[RankClock]
    recorder: Recorder


class NativeStack(TypedDict):
    rank: int
    pid: int
    frames: list[str]
    """Frames of the main thread, Python's and C's, the innermost first; empty if it could not be read."""
    problem: str | None
    """Reason for empty frames."""


class HangAnswer(TypedDict):
    """The object that `traincope hang --format json` prints."""

    schema_version: int
    hangs: list[Hang]
    verdict: list[Finding]
    """One finding per hang, in the same order."""
    next_step: int
    """Number of the first step that no rank has completed."""
    lacks: list[str]
    """One sentence for each unanswered question about a job started without traincope, and what to do about it."""
    native_stacks: list[NativeStack]
    """Stacks of the named ranks that run on this host; empty without --native."""
