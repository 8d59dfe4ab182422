"""Findings about a job's slowdown, from its table of operations: its cause by replays, and ranks that slow down."""

from collections.abc import Iterator

from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.stragglers.slowdown import STRAGGLING_RATIO, Slowdown, SlowdownCause
from traincope.analysis.verdict.findings import Finding, FindingKind, percent, with_gain
from traincope.units import count, numbers

SLOWS_DOWN = (
    "Look for what began on the rank's host at that step (other processes, a job's start, heat), and for longer inputs."
)
ADVICE = {
    SlowdownCause.WORKER: "Test the hosts and GPUs of these ranks, and replace those that stay slow.",
    SlowdownCause.LAST_STAGE: "Move layers from the last stage to the others: it also computes the loss.",
    SlowdownCause.SEQUENCE_LENGTH: (
        "Give each data-parallel rank and microbatch sequences of equal cost in sum: attention grows with the square "
        "of the length."
    ),
}


def slowdown_findings(slowdown: Slowdown | None) -> Iterator[Finding]:
    """Yield one finding for a job that straggles, or whose replay does not describe it."""
    if slowdown is None or slowdown.cause is SlowdownCause.NONE:
        return
    if slowdown.cause is SlowdownCause.UNKNOWN:
        yield _unknown(slowdown)
        return
    ranks = {SlowdownCause.WORKER: slowdown.slowest, SlowdownCause.LAST_STAGE: slowdown.last_stage}
    yield Finding(
        kind=FindingKind.SLOWDOWN,
        ranks=ranks.get(slowdown.cause, ()),
        confidence=HIGH if _agrees(slowdown) else MEDIUM,
        evidence=f"{_slower(slowdown)}; cause {slowdown.cause}: {_evidence(slowdown)}",
        advice=with_gain(ADVICE[slowdown.cause], slowdown.gain_ratio),
        estimated_gain_ratio=slowdown.gain_ratio,
    )


def stretch_findings(slowdown: Slowdown | None) -> Iterator[Finding]:
    """Yield one finding per stretch, without a gain: how often it comes back is unknown."""
    for stretch in () if slowdown is None else slowdown.stretches:
        yield Finding(
            kind=FindingKind.SLOW_STEP,
            ranks=(stretch.rank,),
            steps=tuple(range(stretch.first_step, stretch.last_step + 1)),
            confidence=MEDIUM,
            evidence=(
                f"rank {stretch.rank} slows down {stretch.when}: its computation takes {stretch.ratio:.2f} times as "
                f"long as in its other steps, in {count(stretch.num_steps, 'step')}, which costs "
                f"{percent(stretch.lost_ratio)} of the time of all steps"
            ),
            advice=SLOWS_DOWN,
        )


def _slower(slowdown: Slowdown) -> str:
    return f"a step takes {slowdown.ratio or 0.0:.2f} times as long as with average operations"


def _evidence(slowdown: Slowdown) -> str:
    if slowdown.cause is SlowdownCause.WORKER:
        who, share = numbers(slowdown.slowest, "rank"), percent(slowdown.worker_share or 0.0)
        since = "".join(f", {each.when}" for each in slowdown.stretches if each.rank == slowdown.worker)
        longer = _longer(slowdown, f"rank {slowdown.worker}", "its stage")
        return f"{share} of the loss is due to {who}{since}{longer}"
    if slowdown.cause is SlowdownCause.LAST_STAGE:
        share = percent(slowdown.last_stage_share or 0.0)
        return f"{share} of the loss is due to the last stage{_longer(slowdown, 'it', 'the other stages')}"
    return (
        f"{percent(slowdown.sequence_length_share or 0.0)} of the loss remains if only microbatches differ, and their "
        f"forward and backward times vary together (correlation {slowdown.correlation or 0.0:.2f})"
    )


def _longer(slowdown: Slowdown, what: str, others: str) -> str:
    if slowdown.excess_ratio is None:
        return ""
    return f"; {what} computes for {1 + slowdown.excess_ratio:.2f} times the time of {others}"


def _agrees(slowdown: Slowdown) -> bool:
    """Return whether measured times agree with the replays."""
    if slowdown.cause is SlowdownCause.SEQUENCE_LENGTH:
        return slowdown.stage_correlation is not None
    return (slowdown.excess_ratio or 0.0) >= STRAGGLING_RATIO - 1


def _unknown(slowdown: Slowdown) -> Finding:
    return Finding(
        kind=FindingKind.SLOWDOWN,
        confidence=UNKNOWN,
        evidence=f"the cause of the job's slowdown is unknown: {slowdown.reason}",
        advice="Compare the times of its computations by rank and by step.",
    )
