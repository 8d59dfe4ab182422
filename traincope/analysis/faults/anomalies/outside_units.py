"""Parameters in no unit of FSDP or DDP, whose replicas drift apart: no collective reduces their gradients. Or the
training reduces all of them by itself, and they never were the same.

Sums of their values show it: they were equal on the ranks of the units before the first update, and differ later.
Parts that ranks hold on purpose, e.g. experts or classes, may begin equal too. So a training whose ranks exchange more
than the units do is not judged, and neither is one that averages at intervals.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.communication.call_sites import RankCalls
from traincope.analysis.faults.anomalies.unreduced import (
    ALMOST_ALL,
    EXCHANGES,
    by_hand,
    full_bytes,
    gradient_bytes,
    is_averaged,
)
from traincope.events import OUTSIDE_UNITS, Kind, Phase
from traincope.store.segments.segments import recorder_events
from traincope.timeline import RankTimeline, Timeline

MIN_APART = 0.05
"""How far apart ranks are, as a share of the way that their values have gone. A reduction by hand leaves them equal."""
ENOUGH_LOOKS = 3
"""Looks after the first step from which ranks drift apart."""
FSDP = "FSDP"
OF_UNITS = {FSDP: "all_gather", "DDP": "broadcast"}
"""Operation of units in a forward: parameters of FSDP, buffers of DDP."""
MORE = 1.1
"""How many times the gathers of one step its units may have: forwards of evaluation gather, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideUnits:
    unit: str
    """What the units are of: FSDP or DDP."""
    parameters: int
    bytes: int
    names: tuple[str, ...]
    """Some of the parameters that were compared, and that differ."""
    num_ranks: int
    """Ranks that were compared."""
    num_looks: int
    """Steps in which they were compared. They differ in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverEqual:
    """Parameters of a training without units, which averages their gradients."""

    names: tuple[str, ...]
    num_ranks: int
    num_looks: int
    """Steps in which they were compared, with that before the first update. They differ in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a rank noted."""

    noted: dict[str, Any]
    sums: dict[int, NDArray[np.float64]]
    """Step -> sums of values of the parameters; the lowest step is before the first update."""


def outside_units(timeline: Timeline, calls: Sequence[RankCalls]) -> OutsideUnits | None:
    """Find parameters that drift apart, because they are in no unit; None without, or if the records do not show it."""
    ranks = {rank.rank: rank for rank in timeline.ranks}
    for seen in _replicas(timeline):
        found = _drift(list(seen.values()))
        if found is not None and found.unit not in OF_UNITS:
            continue
        known = {call.rank: call for call in calls if call.messages}
        if found is not None and all(
            rank in known and _is_judged(ranks[rank], known[rank], found, each) for rank, each in seen.items()
        ):
            return found
    return None


def never_equal(timeline: Timeline, calls: Sequence[RankCalls]) -> NeverEqual | None:
    """Find parameters that differ from the begin on, although every step averages all gradients over all ranks; None
    without, or if the records do not show it.
    """
    by_rank = {call.rank: call for call in calls}
    if len(timeline.ranks) < 2 or not all(_averages(rank, by_rank.get(rank.rank)) for rank in timeline.ranks):
        return None
    for seen in _replicas(timeline):
        noted, sums = next(iter(seen.values())).noted, [each.sums for each in seen.values()]
        steps = sorted(set.intersection(*map(set, sums)))
        if noted["of"] or len(seen) < len(timeline.ranks) or len(steps) <= ENOUGH_LOOKS:
            continue
        values = np.array([[each[step] for step in steps] for each in sums])
        apart = np.linalg.norm(values - values[0], axis=2).max(axis=0)
        if (apart >= MIN_APART * np.linalg.norm(values, axis=2).max(axis=0)).all():
            return NeverEqual(names=tuple(noted["names"]), num_ranks=len(seen), num_looks=len(steps))
    return None


def _averages(rank: RankTimeline, call: RankCalls | None) -> bool:
    """Return whether a rank reduces about as many bytes as its gradients have in each step, by hand, and exchanges
    nothing else that shows parts of a model.
    """
    gradients = gradient_bytes(rank)
    if call is None or gradients is None or not by_hand(rank) or any(e.operation in EXCHANGES for e in call.messages):
        return False
    forwards = any(each.phase is Phase.FORWARD for each in call.messages)
    return not forwards and full_bytes(call.messages) >= ALMOST_ALL * gradients * call.num_steps


def _replicas(timeline: Timeline) -> Iterator[dict[int, _Seen]]:
    """Yield the ranks, at least two, that noted the same about the same units."""
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    alike: dict[tuple[object, ...], dict[int, _Seen]] = defaultdict(dict)
    for rank in timeline.ranks:
        seen = _seen(rank, details[rank.rank])
        if seen is not None:
            noted = seen.noted
            alike[(*noted["replicas"], *noted["names"], noted["parameters"], noted["bytes"])][rank.rank] = seen
    yield from (seen for seen in alike.values() if len(seen) > 1)


def _seen(rank: RankTimeline, details: Any) -> _Seen | None:
    events = [event for records in rank.threads.values() for event in recorder_events(records)]
    events = [event for event in events if rank.name(int(event["name"])) == OUTSIDE_UNITS]
    noted: dict[str, Any] | None = None
    sums: dict[int, NDArray[np.float64]] = {}
    for event in sorted(events, key=lambda event: int(event["start_ns"])):
        read = details.get(int(event["group"]), {})
        if "names" in read:
            noted, sums = read, {}  # another launch
        elif "sums" in read and np.isfinite(read["sums"]).all():
            sums[int(read["step"])] = np.array(read["sums"])
    return None if noted is None or not sums else _Seen(noted=noted, sums=sums)


def _drift(seen: Sequence[_Seen]) -> OutsideUnits | None:
    steps = sorted(set.intersection(*(set(each.sums) for each in seen)))
    if len(steps) <= ENOUGH_LOOKS or steps[0] != min(seen[0].sums):
        return None
    first, *later = (np.array([each.sums[step] for each in seen]) for step in steps)
    if (first != first[0]).any():
        return None
    for values in later:
        moved, apart = values - first, values - values[0]
        gone = np.linalg.norm(moved, axis=1)
        if not gone.min() or np.linalg.norm(apart, axis=1).max() < MIN_APART * gone.max():
            return None
    noted = seen[0].noted
    return OutsideUnits(
        unit=noted["of"],
        parameters=noted["parameters"],
        bytes=noted["bytes"],
        names=tuple(noted["names"]),
        num_ranks=len(seen),
        num_looks=len(later),
    )


def _is_judged(rank: RankTimeline, call: RankCalls, found: OutsideUnits, seen: _Seen) -> bool:
    """Return whether a rank sends in its forwards only what its units do, and averages no parameters at intervals."""
    phases = rank.of_kind(Kind.PHASE)
    forwards = [each for each in call.messages if each.phase is Phase.FORWARD]
    num_sent = sum(each.num_messages for each in forwards) / max(call.num_steps, 1)
    microbatches = max(np.count_nonzero(phases["phase"] == Phase.BACKWARD) / max(len(rank.steps), 1), 1)
    of_units = seen.noted["units"] * microbatches * MORE if found.unit == FSDP else np.inf
    return (
        all(each.operation == OF_UNITS[found.unit] for each in forwards)
        and num_sent <= of_units
        and not any(each.operation in EXCHANGES for each in call.messages)
        and not is_averaged(rank, found.bytes, beyond_usual=True)
    )
