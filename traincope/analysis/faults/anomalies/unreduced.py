"""Gradients that no collective reduces before the optimizer uses them: replicas of the model drift apart.

Only what steps with detail show counts, and only if it is the same in all of them and on every rank. Where replicas
train alone for some steps and are averaged then (local SGD, DiLoCo), no gradient has to be reduced.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincope.analysis.communication.call_sites import Messages, RankCalls
from traincope.events import BLOCK_STEPS, ELEMENT_SHIFT, OUTSIDE_DDP, Element, Flag, Kind, MemoryMeasure, Phase
from traincope.store.segments.segments import recorder_events
from traincope.timeline import RankTimeline, Timeline
from traincope.timeline.intervals.numbering import Numbering

ENOUGH_STEPS = 3
"""Steps with detail from which a missing reduction is no exception."""
MANY_STEPS = 12
"""The same where torch's own counts do not show it: more than one window, so that rare averages are seen."""
ALMOST_ALL = 0.95
"""Share of the gradients' bytes from which all of them are reduced: the bytes are those of one sample."""
AVERAGES = 2
"""Steps whose collectives have the bytes of the whole model, from which replicas are averaged at intervals."""
LEAST = 0.05
"""Share of the gradients' bytes below which messages between backward and optimizer are something else."""
DDP_AXIS, WRAPPER, NO_RULE = "dp", "wrapper", "none"
EXCHANGES = frozenset({"all_to_all", "send", "recv"})
HALF = (Element.BFLOAT16, Element.FLOAT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideDDP:
    """Parameters that the optimizer trains and that came, or were unfrozen, after DDP was made."""

    parameters: int
    bytes: int
    reduced_bytes: int
    """Bytes of the parameters that DDP reduces."""
    first: str
    """Name of one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreducedGradients:
    num_steps: int
    """Steps with detail, on each rank."""
    by_ddp: bool
    """The model is DDP's. It reduces all gradients, or none."""
    gradient_bytes: int | None
    """Bytes of one rank's gradients; None if they were not measured."""
    reduced_bytes: int
    """Bytes that the collectives of one step could have reduced."""
    counted: bool
    """torch's own counts of the whole run show it too: there were fewer collectives than steps."""
    outside: OutsideDDP | None = None
    """Parameters that DDP does not know, if only theirs are not reduced."""


def unreduced_gradients(timeline: Timeline, calls: Sequence[RankCalls]) -> UnreducedGradients | None:
    """Find gradients without a reduction; None if all are reduced, or if the records do not show that."""
    steps = min((rank.num_steps for rank in calls), default=0)
    if len(calls) < 2 or steps < ENOUGH_STEPS or not all(map(trains, timeline.ranks)):
        return None
    by_ddp = all(is_of_ddp(rank) for rank in timeline.ranks)
    gradients = [gradient_bytes(rank) for rank in timeline.ranks]
    known = None if None in gradients else min(each for each in gradients if each is not None)
    reduced = max(round(full_bytes(rank.messages) / rank.num_steps) for rank in calls)
    found = UnreducedGradients(
        num_steps=steps,
        by_ddp=by_ddp,
        gradient_bytes=known,
        reduced_bytes=reduced,
        counted=by_ddp and _issued_less_than_steps(timeline),
    )
    outside = _outside_ddp(timeline) if by_ddp else None
    if outside is not None and reduced <= outside.reduced_bytes + outside.bytes // 2:
        return replace(found, outside=outside)
    if known is not None and all(is_averaged(rank, known) for rank in timeline.ranks):
        return None
    if by_ddp:
        seen = found.counted or steps >= MANY_STEPS or _issued_no_more(timeline, calls)
        return found if reduced <= LEAST * (known or 0) and seen else None
    if known is None or not all(by_hand(rank) for rank in timeline.ranks) or any(map(_is_spread, calls)):
        return None
    return found if LEAST * known < reduced < ALMOST_ALL * known else None


def is_of_ddp(rank: RankTimeline) -> bool:
    """Return whether DDP reduces its gradients, and ranks are replicas and nothing else."""
    return any(g.axis == DDP_AXIS and g.rule == WRAPPER and len(g.ranks) > 1 for g in rank.groups) and _one_axis(rank)


def trains(rank: RankTimeline) -> bool:
    """Return whether the rank had backward and optimizer phases, and no pipeline."""
    phases = rank.main["phase"][rank.main["kind"] == Kind.PHASE]
    piped = bool((rank.main["kind"] == Kind.ACTION).any())
    return not piped and all((phases == phase).any() for phase in (Phase.BACKWARD, Phase.OPTIMIZER))


def _outside_ddp(timeline: Timeline) -> OutsideDDP | None:
    """Parameters outside of DDP as the first rank has them; None if a rank has none, or any other number."""
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    found = []
    for rank in timeline.ranks:
        events = (event for records in rank.threads.values() for event in recorder_events(records))
        named = [event for event in events if rank.name(int(event["name"])) == OUTSIDE_DDP]
        values = details[rank.rank].get(int(named[0]["group"]), {}) if named else {}
        if not {"parameters", "bytes", "reduced_bytes", "first"} <= values.keys():
            return None
        found.append(OutsideDDP(**values))
    return found[0] if len({each.bytes for each in found}) == 1 else None


def by_hand(rank: RankTimeline) -> bool:
    """Return whether its only group is the world, which no wrapper uses: it reduces gradients by hand."""
    return _one_axis(rank) and all(group.rule == NO_RULE for group in rank.groups)


def is_averaged(rank: RankTimeline, num_bytes: int, *, beyond_usual: bool = False) -> bool:
    """Return whether the collectives of several steps, but not of all, could have averaged `num_bytes` of parameters.

    `beyond_usual`: next to what the collectives of a usual step have.
    """
    steps = Numbering.of(np.array([step.number for step in rank.steps], dtype=np.int64))
    sums = np.zeros(len(steps) + 1, dtype=np.int64)  # the last is outside of steps
    for records in rank.threads.values():
        sent = records[(records["kind"] == Kind.COLLECTIVE) & (records["flags"] & Flag.POINT_TO_POINT == 0)]
        doubled = np.isin(sent["flags"].astype(np.int64) >> ELEMENT_SHIFT, HALF)
        np.add.at(sums, steps.number(sent["step"].astype(np.int64)), sent["value"] * (1 + doubled))
    of_steps = sums[:-1]
    usual = float(np.median(of_steps[of_steps > 0])) if beyond_usual and of_steps.any() else 0.0
    whole = np.count_nonzero(of_steps >= usual + ALMOST_ALL * num_bytes)
    return bool(AVERAGES <= whole < len(steps))


def _is_spread(rank: RankCalls) -> bool:
    """Return whether ranks hold parts of the model, e.g. experts or stages, with gradients of their own: they exchange
    tokens or activations.
    """
    return any(sent.operation in EXCHANGES or sent.phase is Phase.FORWARD for sent in rank.messages)


def _one_axis(rank: RankTimeline) -> bool:
    return len({group.key for group in rank.groups if len(group.ranks) > 1}) == 1


def _issued_less_than_steps(timeline: Timeline) -> bool:
    """Return whether torch counted fewer collectives than steps on each rank. Some ranks may have no count."""
    steps = {rank.rank: len(rank.steps) for rank in timeline.ranks}
    issued = {rank.rank: rank.info.issued_collectives for rank in timeline.run.ranks}
    return all(issued.get(rank) and sum(issued[rank].values()) < count for rank, count in steps.items())


def _issued_no_more(timeline: Timeline, calls: Sequence[RankCalls]) -> bool:
    """Return whether steps without detail issued no more collectives than those with detail, by torch's count of the
    whole run: they reduced nothing either.
    """
    usual = {rank.rank: sum(sent.num_messages for sent in rank.messages) / rank.num_steps for rank in calls}
    issued = {rank.rank: sum(rank.info.issued_collectives.values()) for rank in timeline.run.ranks}
    return all(
        rank.rank in usual and 0 < issued[rank.rank] <= _recorded(rank) + usual[rank.rank] * _num_unseen(rank)
        for rank in timeline.ranks
    )


def _recorded(rank: RankTimeline) -> int:
    """Number of collectives in the records, without messages between two ranks."""
    return sum(
        int(np.count_nonzero((records["kind"] == Kind.COLLECTIVE) & (records["flags"] & Flag.POINT_TO_POINT == 0)))
        for records in rank.threads.values()
    )


def _num_unseen(rank: RankTimeline) -> int:
    """Number of steps in blocks that have no recorded collective."""
    seen = set(rank.of_kind(Kind.COLLECTIVE)["window"].tolist())
    return sum(step.number // BLOCK_STEPS * BLOCK_STEPS not in seen for step in rank.steps)


def gradient_bytes(rank: RankTimeline) -> int | None:
    """Return the bytes of a rank's gradients; None if they were not measured."""
    records = rank.of_kind(Kind.MEMORY)
    numbers = [at for at, name in enumerate(rank.names) if name == MemoryMeasure.GRADIENTS]
    values = records["value"][np.isin(records["name"], numbers)]
    return int(values.max()) if len(values) and values.max() > 0 else None


def full_bytes(messages: Sequence[Messages]) -> int:
    """Return the bytes outside of forwards. Messages of 16 bits stand for gradients of 32."""
    sent = [each for each in messages if each.phase not in (Phase.FORWARD, Phase.RECOMPUTE, Phase.OBJECTS)]
    return sum(each.num_bytes * (2 if each.element in HALF else 1) for each in sent)
