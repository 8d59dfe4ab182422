"""Steps that updated nothing, and rollbacks: what a gradient scaler or the training declared."""

from collections import defaultdict
from collections.abc import Iterator

from traincope.analysis.confidence import HIGH
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.events import SKIPPED_STEP, Flag, Kind
from traincope.store.job.attempts import Rollback, read_rollbacks
from traincope.store.segments.segments import recorder_events
from traincope.timeline import Timeline
from traincope.units import count


def skipped_steps(timeline: Timeline) -> Iterator[Fault]:
    """Steps without an update, by a gradient scaler or as the training declared, merged over ranks."""
    by_step: dict[int, list[tuple[int, int]]] = defaultdict(list)
    reasons = _declared_reasons(timeline)
    for rank in timeline.ranks:
        steps = rank.of_kind(Kind.STEP)
        for step in steps[steps["flags"] & Flag.SKIPPED > 0]:
            by_step[int(step["step"])].append((int(step["start_ns"]), rank.rank))
    for number, skipped in by_step.items():
        yield Fault(
            kind=FaultKind.SKIPPED_STEP,
            at_ns=min(skipped)[0],
            ranks=tuple(sorted(rank for _, rank in skipped)),
            step=number,
            what=f"the optimizer was not run: {reasons.get(number) or 'gradients overflowed'}",
            confidence=HIGH,
        )


def rollbacks(timeline: Timeline) -> Iterator[Fault]:
    """Rollbacks within the attempt, merged over ranks, at the end of the step that they undid last."""
    same: dict[tuple[int, int, int, str], list[tuple[int, int]]] = defaultdict(list)
    for rank, declared in rollbacks_by_rank(timeline).items():
        for each in declared:
            same[each.after, each.step, each.undone, each.why].append((each.at_ns, rank))
    for (after, step, undone, why), declared_at in same.items():
        yield Fault(
            kind=FaultKind.ROLLBACK,
            at_ns=min(declared_at)[0],
            ranks=tuple(sorted(rank for _, rank in declared_at)),
            step=after - 1,
            what=f"went back to the state after step {step}" + (f": {why}" if why else ""),
            evidence=f"{count(undone, 'step')} undone",
            confidence=HIGH,
        )


def rollbacks_by_rank(timeline: Timeline) -> dict[int, list[Rollback]]:
    """Rank -> the rollbacks that its training thread declared, in order."""
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    return {
        rank.rank: list(read_rollbacks(rank.main, names=rank.names, details=details[rank.rank]))
        for rank in timeline.ranks
    }


def _declared_reasons(timeline: Timeline) -> dict[int, str]:
    """Step -> the reason that the training declared for skipping it."""
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    reasons: dict[int, str] = {}
    for rank in timeline.ranks:
        for event in recorder_events(rank.main):
            if rank.name(int(event["name"])) == SKIPPED_STEP:
                values = details[rank.rank].get(int(event["group"]), {})
                reasons.setdefault(int(event["step"]), str(values.get("why", "")) or "the training skipped the step")
    return reasons
