"""Findings, their kinds and their order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.replaying.prices import Gain

MIN_SHARE = 0.05
"""Share of step time below which a loss is not a finding."""


class FindingKind(StrEnum):
    """Subject of a finding; the value is its name in JSON."""

    HANG = "hang"
    STALL = "stall"
    """The ranks stand still, and may go on by themselves; or they stood still for long, and went on."""
    MISMATCH = "mismatch"
    """Ranks disagree on the n-th collective of their group."""
    LOST_HOST = "lost_host"
    """A host stopped answering the agent of another host."""
    KILLED_RANK = "killed_rank"
    FAILED_RANK = "failed_rank"
    STOPPED_JOB = "stopped_job"
    """No rank failed: the job was stopped from outside."""
    RUNNING = "running"
    """The job goes on. The findings after it are those so far."""
    NO_END_RECORDED = "no_end_recorded"
    MISSING_RANK = "missing_rank"
    NO_STEPS = "no_steps"
    CORRUPTED_STATE = "corrupted_state"
    """A parameter or a state of the optimizer went bad in a rank's memory."""
    REPLICAS_DIFFER = "replicas_differ"
    """Replicas of the state differ for another reason."""
    UNREDUCED_GRADIENTS = "unreduced_gradients"
    """Replicas drift apart: the optimizer uses gradients that no collective reduced."""
    DATA_ORDER = "data_order"
    """Data were fed again, skipped, in another order, or the same ones on every rank or in every pass."""
    STALE_ROLLOUTS = "stale_rollouts"
    """Rollouts are made with weights that are no longer renewed."""
    PIPELINE_BUBBLE = "pipeline_bubble"
    EXPOSED_WAIT = "exposed_wait"
    EXPOSED_TRANSFER = "exposed_transfer"
    EXPOSED_COMMUNICATION = "exposed_communication"
    OBJECT_COLLECTIVES = "object_collectives"
    """Ranks exchange pickled Python objects."""
    STRAGGLER = "straggler"
    SLOWDOWN = "slowdown"
    """The cause of a job's slowdown, by replays of its table of operations."""
    HOT_EXPERT = "hot_expert"
    """Experts of some ranks get more tokens than those of others."""
    SLOW_STEP = "slow_step"
    """The computation of a rank slows down for some steps in a row."""
    STEP_TIME_CHANGE = "step_time_change"
    """The step time changed for good between windows."""
    DATA_BOUND = "data_bound"
    JOB_WAIT = "job_wait"
    """The training waits for other jobs of its workflow."""
    CHECKPOINT_STALL = "checkpoint_stall"
    CHECKPOINT_CADENCE = "checkpoint_cadence"
    """Another interval between checkpoints would lose less time."""
    RESTART = "restart"
    """Restarts take much of the run."""
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
    UNCLASSIFIED_KERNELS = "unclassified_kernels"
    """Most of the traced kernels' names do not say what they do."""
    UNFUSED_KERNELS = "unfused_kernels"
    """Chains of small kernels that could be one kernel each."""
    HOST_SHORTAGE = "host_shortage"
    """The ranks of a host lack cores or memory together."""
    DEBUGGING = "debugging"
    """Tools that look into the training are on, and slow it down."""
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
    """Share of step time that the advice saves; None if it is unknown."""
    gain_at_most: bool = False
    """The gain is an upper bound."""
    avoidable: bool = False
    """True if the messages can be left out, whatever makes them slow."""


FAULTY = frozenset(
    {
        FindingKind.HANG,
        FindingKind.STALL,
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
        FindingKind.UNREDUCED_GRADIENTS,
        FindingKind.DATA_ORDER,
        FindingKind.STALE_ROLLOUTS,
        FindingKind.MEMORY_GROWTH,
        FindingKind.FAULTS,
    }
)
"""Kinds that come before all losses of time."""
BY_SHORTAGE = frozenset(
    {
        FindingKind.DATA_BOUND,
        FindingKind.EXPOSED_WAIT,
        FindingKind.EXPOSED_TRANSFER,
        FindingKind.PIPELINE_BUBBLE,
        FindingKind.STEP_TIME_CHANGE,
    }
)
"""Kinds that a host's shortage can make by itself: DataLoader workers and threads that transfer wait for cores too."""
BY_MESSAGES = frozenset({FindingKind.HOT_EXPERT, FindingKind.OBJECT_COLLECTIVES})
"""Kinds whose cause is seen in what is sent, however few steps show its time."""
MUCH_SMALLER = 0.25
"""Gain relative to the loss by a host's shortage below which a cause of its own does not come first."""
OF_A_BOUND = 0.5
"""Weight of a gain of which only an upper bound is known: it may be anything from nothing on."""
WEIGHTS = {HIGH: 1.0, MEDIUM: 0.5}
"""Confidence -> weight of a finding's gain; any other confidence has weight 0."""


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings: that the job runs, faults, then losses by estimated gain x confidence, then those without a gain.

    A debugging tool that is always on comes before all losses. A cause that messages show, without a gain, comes before
    a gain of which the confidence is unknown. A gain of which only a bound is known counts half. Findings that compare
    equal keep their order. Time in the training's own code may be what it has to do: it comes after gains that are no
    bounds. What a host lacks makes all losses longer: it comes after those with a cause of their own, unless they are
    much smaller, and before those that the lack itself may make.
    """
    found = list(findings)
    placed = sorted((finding for finding in found if finding.kind is not FindingKind.HOST_SHORTAGE), key=_place)
    of_own_code = [each for each in placed if each.kind is FindingKind.UNATTRIBUTED and each.gain_at_most]
    for each in of_own_code:
        after = max((at for at, other in enumerate(placed) if _is_sure(other)), default=-1)
        if placed.index(each) < after:
            placed.insert(after, placed.pop(placed.index(each)))
    for short in (finding for finding in found if finding.kind is FindingKind.HOST_SHORTAGE):
        place = next((place for place, other in enumerate(placed) if _comes_after(other, short)), len(placed))
        placed.insert(place, short)
    return tuple(placed)


def _is_sure(finding: Finding) -> bool:
    """Return whether a gain that is worth it is known, and no bound."""
    gain = finding.estimated_gain_ratio
    return gain is not None and gain >= MIN_SHARE and not finding.gain_at_most and finding.confidence in WEIGHTS


def _comes_after(other: Finding, short: Finding) -> bool:
    """Return whether a finding comes after that of a host."""
    gain, lost = other.estimated_gain_ratio, short.estimated_gain_ratio or 0.0
    if other.kind is FindingKind.RUNNING or (other.kind in FAULTY and gain is None) or _is_in_all_numbers(other):
        return False
    by_shortage = other.kind in BY_SHORTAGE and not other.avoidable
    if gain is None:
        return not other.avoidable
    return _expected(other) < (lost if by_shortage else MUCH_SMALLER * lost)


def _is_in_all_numbers(finding: Finding) -> bool:
    """Return whether all that is measured contains a loss of unknown size: first it has to go."""
    return finding.kind is FindingKind.DEBUGGING and finding.estimated_gain_ratio is None


def _expected(finding: Finding) -> float:
    """The gain to expect."""
    return (finding.estimated_gain_ratio or 0.0) * (OF_A_BOUND if finding.gain_at_most else 1.0)


def _place(finding: Finding) -> tuple[bool, bool, int, float]:
    is_loss = finding.kind not in FAULTY or finding.estimated_gain_ratio is not None  # a stall that is over is a loss
    weighted = -_expected(finding) * WEIGHTS.get(finding.confidence, 0.0)
    return finding.kind != FindingKind.RUNNING, is_loss, _tier(finding) if is_loss else 0, weighted


def _tier(finding: Finding) -> int:
    """Place of a loss: what is in all numbers, gains that are known, causes that messages show, uncertain gains, all
    others.
    """
    known, gain = finding.confidence in WEIGHTS, finding.estimated_gain_ratio
    if _is_in_all_numbers(finding):
        return -1
    if gain is not None:
        return 0 if known else 2
    return 1 if known and (finding.avoidable or finding.kind in BY_MESSAGES) else 3


Weighted = Iterator[tuple[float, Finding]]
"""Findings with their share of step time, which orders those without a gain."""


def percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def priced(finding: Finding, gain: Gain, *, shown: bool = False) -> Finding:
    """The finding with this gain, also in its advice; its confidence is that of the gain's evidence at most.

    `shown`: what is sent shows the cause, however few steps show its time. Then only an uncertain gain is left out.
    """
    if shown and gain.confidence == UNKNOWN:
        return finding
    return replace(
        finding,
        confidence=UNKNOWN if gain.confidence == UNKNOWN else finding.confidence,
        advice=with_gain(finding.advice, gain.ratio, at_most=gain.at_most),
        estimated_gain_ratio=gain.ratio,
        gain_at_most=gain.at_most,
    )


def with_gain(advice: str, gain_ratio: float | None, *, at_most: bool = False) -> str:
    """Advice with its estimated gain, or the bound of it; the advice alone if the gain is unknown."""
    if gain_ratio is None:
        return advice
    known = "at most" if at_most else "an estimated"
    return f"{advice.removesuffix('.')}: this saves {known} {percent(gain_ratio)} of step time."
