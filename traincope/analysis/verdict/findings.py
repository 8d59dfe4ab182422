"""Findings, their kinds and their order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from traincope.analysis.confidence import HIGH, MEDIUM

MIN_SHARE = 0.05
"""Share of step time below which a loss is not a finding."""


class FindingKind(StrEnum):
    """Subject of a finding; the value is its name in JSON."""

    HANG = "hang"
    MISMATCH = "mismatch"
    """Ranks disagree on the n-th collective of their group."""
    LOST_HOST = "lost_host"
    """A host stopped answering the agent of another host."""
    KILLED_RANK = "killed_rank"
    FAILED_RANK = "failed_rank"
    STOPPED_JOB = "stopped_job"
    """No rank failed: the job was stopped from outside."""
    NO_END_RECORDED = "no_end_recorded"
    MISSING_RANK = "missing_rank"
    NO_STEPS = "no_steps"
    CORRUPTED_STATE = "corrupted_state"
    """A parameter or a state of the optimizer went bad in a rank's memory."""
    REPLICAS_DIFFER = "replicas_differ"
    """Replicas of the state differ for another reason."""
    PIPELINE_BUBBLE = "pipeline_bubble"
    EXPOSED_WAIT = "exposed_wait"
    EXPOSED_TRANSFER = "exposed_transfer"
    EXPOSED_COMMUNICATION = "exposed_communication"
    STRAGGLER = "straggler"
    SLOWDOWN = "slowdown"
    """The cause of a job's slowdown, by replays of its table of operations."""
    HOT_EXPERT = "hot_expert"
    """Experts of some ranks get more tokens than those of others."""
    STEP_TIME_CHANGE = "step_time_change"
    """The step time changed for good between windows."""
    DATA_BOUND = "data_bound"
    JOB_WAIT = "job_wait"
    """The training waits for other jobs of its workflow."""
    CHECKPOINT_STALL = "checkpoint_stall"
    CHECKPOINT_CADENCE = "checkpoint_cadence"
    """Another interval between checkpoints would lose less time."""
    INTERRUPTIONS = "interruptions"
    """From an imported list of interruptions."""
    GC = "gc"
    COMPILE = "compile"
    SYNC = "sync"
    LAUNCH_GAP = "launch_gap"
    """The GPU idles until the host launches its next kernel."""
    KERNEL_WAIT = "kernel_wait"
    """The GPU idles although its next kernel is launched already."""
    LAUNCH_BOUND = "launch_bound"
    """The GPUs run out of queued work, by marks on their streams."""
    KERNEL_INEFFICIENCY = "kernel_inefficiency"
    """Forward and backward reach little of the peak."""
    UNFUSED_KERNELS = "unfused_kernels"
    """Chains of small kernels that could be one kernel each."""
    EVALUATION = "evaluation"
    UNATTRIBUTED = "unattributed"
    GPU_IDLE = "gpu_idle"
    """From kernel traces without steps."""
    EXPOSED_MEMORY = "exposed_memory"
    MEMORY_GROWTH = "memory_growth"
    GPU_MEMORY = "gpu_memory"
    """From an imported snapshot of torch's allocator."""
    FAULTS = "faults"
    """No time is lost, but there are faults."""
    HEALTHY = "healthy"
    """No finding applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One loss or fault with its evidence and advice."""

    kind: FindingKind
    ranks: tuple[int, ...] = ()
    """Empty: all ranks."""
    steps: tuple[int, ...] = ()
    """Empty: all steps."""
    confidence: str
    evidence: str
    advice: str
    estimated_gain_ratio: float | None = None
    """Share of step time that the advice saves, if the term falls to its theoretical value; None without a theory."""


FAULTY = frozenset(
    {
        FindingKind.HANG,
        FindingKind.MISMATCH,
        FindingKind.LOST_HOST,
        FindingKind.KILLED_RANK,
        FindingKind.FAILED_RANK,
        FindingKind.STOPPED_JOB,
        FindingKind.NO_END_RECORDED,
        FindingKind.MISSING_RANK,
        FindingKind.NO_STEPS,
        FindingKind.CORRUPTED_STATE,
        FindingKind.REPLICAS_DIFFER,
        FindingKind.FAULTS,
    }
)
"""Kinds that come before all losses of time."""
WEIGHTS = {HIGH: 1.0, MEDIUM: 0.5}
"""Confidence -> weight of a finding's gain; any other confidence has weight 0."""


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings: faults, then by estimated gain x confidence, then those without a gain.

    Findings that compare equal keep their order.
    """
    return tuple(sorted(findings, key=_place))


def _place(finding: Finding) -> tuple[bool, bool, float]:
    gain = finding.estimated_gain_ratio
    return finding.kind not in FAULTY, gain is None, -(gain or 0.0) * WEIGHTS.get(finding.confidence, 0.0)


Weighted = Iterator[tuple[float, Finding]]
"""Findings with their share of step time, which orders those without a gain."""


def percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def with_gain(advice: str, gain_ratio: float | None) -> str:
    """Advice with its estimated gain; the advice alone if the gain is unknown."""
    if gain_ratio is None:
        return advice
    return f"{advice.removesuffix('.')}: this saves an estimated {percent(gain_ratio)} of step time."
