"""Type of the object that `report --format json` prints. The text report shows the same object.

All top-level keys are always present. null means no evidence, never 0. Times are integer nanoseconds (`_ns`), ratios
are floats where 1 is the whole (`_ratio`), and sums are over the ranks and the counted steps, i.e. without
`run.excluded_steps`. An annotated value is the JSON of the results that the annotation names (`results.plain`).
"""

from typing import Annotated, Any, TypedDict

from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.analysis.communication.exchanges import Exchange
from traincope.analysis.communication.role_time import RoleTime
from traincope.analysis.communication.workflow import Job, JobWait
from traincope.analysis.critical_path import CriticalPath
from traincope.analysis.efficiency.background_saves import BackgroundSaves
from traincope.analysis.efficiency.energy import Energy
from traincope.analysis.efficiency.goodput import Goodput
from traincope.analysis.efficiency.rollouts import Rollouts
from traincope.analysis.efficiency.utilization import Utilization
from traincope.analysis.faults.anomalies.corruption import StateChecks
from traincope.analysis.faults.anomalies.data_order import DataOrder
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.faults.shortages import OutOfMemory
from traincope.analysis.faults.slow_code import SampledWindow
from traincope.analysis.kernels.gpu_partition import GpuPartition
from traincope.analysis.ledger.host_shortages import HostShortage
from traincope.analysis.memory.census import GrownTensors
from traincope.analysis.memory.snapshots import RankSnapshot
from traincope.analysis.memory.split import MemorySplit
from traincope.analysis.memory.uses import MemoryUse
from traincope.analysis.pipeline.bubble import Bubble
from traincope.analysis.reliability.reliability import Reliability
from traincope.analysis.stragglers.slowdown import Slowdown
from traincope.analysis.stragglers.stragglers import Stragglers
from traincope.report.schema.job import Fault, Finding, Recorder, Run
from traincope.report.schema.steps import Ledger, TermCauses
from traincope.report.schema.traces import Kernels
from traincope.timeline import RankClock

SCHEMA_VERSION = 3


class Document(TypedDict):
    schema_version: int
    run: Run
    verdict: list[Finding]
    ledger: Ledger | None
    causes: list[TermCauses]
    """Causes within the terms; empty without counted steps."""
    utilization: Annotated[Any, Utilization]
    energy: Annotated[Any, Energy]
    rollouts: Annotated[Any, Rollouts | None]
    """null: the training records no rollouts."""
    comm: Annotated[Any, list[AxisOperation] | None]
    bubble: Annotated[Any, Bubble | None]
    stragglers: Annotated[Any, Stragglers | None]
    slowdown: Annotated[Any, Slowdown | None]
    """null: the run was not imported from a table of operations."""
    host_shortages: Annotated[Any, list[HostShortage]]
    """Shortages that several ranks of a host share, the worst first."""
    faults: list[Fault]
    hangs: Annotated[Any, list[Hang]]
    """Hangs and mismatched collectives, the first cause first."""
    goodput: Annotated[Any, Goodput | None]
    reliability: Annotated[Any, Reliability | None]
    """null where goodput is, but a logbook has it."""
    background_saves: Annotated[Any, BackgroundSaves | None]
    """null: no background save has ended in the last attempt."""
    sampled_stacks: Annotated[Any, list[SampledWindow]]
    """Windows in which several ranks sampled their Python stacks."""
    memory: Annotated[Any, list[MemoryUse] | None]
    """One entry per rank and measure."""
    memory_split: Annotated[Any, list[MemorySplit] | None]
    """One entry per rank, when most memory was in use; null: the tensors were not counted."""
    grown_tensors: Annotated[Any, list[GrownTensors] | None]
    """null: no rank's memory grew in a job with an agent."""
    out_of_memory: Annotated[Any, list[OutOfMemory] | None]
    """null: no rank ended by a shortage of memory."""
    memory_snapshots: Annotated[Any, list[RankSnapshot] | None]
    """One entry per imported snapshot and GPU."""
    kernels: Kernels | None
    critical_path: Annotated[Any, CriticalPath | None]
    data_order: Annotated[Any, DataOrder | None]
    """null: the run did not restart, or no batch of a DataLoader was recorded."""
    state_checks: Annotated[Any, StateChecks | None]
    """null: the training's state was not checked for corruption."""
    gpu_partition: Annotated[Any, list[GpuPartition] | None]
    """One entry per rank and GPU of its kernel traces."""
    clock: Annotated[Any, list[RankClock]]
    recorder: Recorder


class Workflow(TypedDict):
    """The object that `report` of several runs prints with `--format json`."""

    name: str | None
    jobs: Annotated[Any, list[Job]]
    waits: Annotated[Any, list[JobWait]]
    """The largest shares first."""
    exchanges: Annotated[Any, list[Exchange]]
    """Collectives between the jobs, such as those of replica groups."""
    elapsed_ns: int
    """From the first to the last recorded instant of all jobs."""
    sentences: list[str]
    """What these numbers mean, as the text prints it."""
    roles: Annotated[Any, list[RoleTime]]
    """Where the GPU time of each role went; empty if a run declares neither workflow nor role, and does not wait."""
    reports: list[Document]
    """One per job, in their order."""


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
    hangs: Annotated[Any, list[Hang]]
    verdict: list[Finding]
    """One finding per hang, in the same order."""
    next_step: int
    """Number of the first step that no rank has completed."""
    lacks: list[str]
    """One sentence for each unanswered question about a job started without traincope, and what to do about it."""
    native_stacks: list[NativeStack]
    """Stacks of the named ranks that run on this host; empty without --native."""
