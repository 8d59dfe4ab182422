"""Findings about parameters and optimizer state that went bad, or that differ between replicas."""

from collections.abc import Iterator, Sequence

from traincope.analysis.faults.anomalies.corruption import Corruption, StateChecks
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.recovery import recovery
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.timeline import Timeline

KINDS = {
    FaultKind.CORRUPTED_STATE: FindingKind.CORRUPTED_STATE,
    FaultKind.REPLICAS_DIFFER: FindingKind.REPLICAS_DIFFER,
}


def bad_state(timeline: Timeline, faults: Sequence[Fault], state: StateChecks | None) -> Iterator[Finding]:
    """One finding for each corruption. `faults`: of the same timeline, with its checkpoints."""
    for corruption in () if state is None else state.corruptions:
        yield Finding(
            kind=KINDS[corruption.kind],
            ranks=corruption.ranks,
            steps=(corruption.step,),
            confidence=corruption.confidence,
            evidence=f"{corruption.what}, {corruption.evidence}",
            advice=_advice(timeline, faults, corruption),
        )


def _advice(timeline: Timeline, faults: Sequence[Fault], corruption: Corruption) -> str:
    """Advice to go back to a state that was good: later checkpoints may have the bad one."""
    if corruption.kind is FaultKind.REPLICAS_DIFFER:
        return "Find out why these ranks differ before you keep a checkpoint of them: each trains another model."
    until_ns = timeline.start_ns if corruption.good_ns is None else corruption.good_ns
    host_of = corruption.ranks if len(corruption.ranks) == 1 else ()
    first = "Stop the job: the bad value trains on, and later checkpoints contain it."
    test = "Test the memory of the host and of its GPU before it trains again."
    return " ".join([first, *recovery(timeline, faults, before_ns=until_ns, host_of=host_of), test])
