"""Pipeline replicas: which ranks form one, what each did in each step, when its window ends."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.schedule import Replica
from traincope.events import Kind, Phase
from traincope.plan.actions import Action
from traincope.plan.schedule import Ns, Ran, Timetable
from traincope.timeline import RankTimeline, Timeline, error_between_ns
from traincope.topology import PIPELINE_AXIS

Ints = NDArray[np.int64]

NO_WINDOW = int(np.iinfo(np.int64).min)
""""End" of a pipeline's window in a step that has none."""

FINEST = 0.01
"""Share of a step: about the width of a character where a step is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSteps:
    """One replica in the steps that all its ranks completed, running their actions in one order."""

    numbers: Ints
    """Step numbers, rising; the arrays in `replica` and below have one entry each."""
    ranks: tuple[int, ...]
    replica: Replica
    window_ends_ns: Ints
    """End of the last action of its slowest stage."""

    def last(self) -> Replica:
        """What ran in the last of the steps alone."""
        durations = {action: int(np.atleast_1d(ns)[-1]) for action, ns in self.replica.durations_ns.items()}
        return Replica(orders=self.replica.orders, durations_ns=durations)

    def without(self, numbers: frozenset[int]) -> "ReplicaSteps | None":
        """Its other steps; None where none is left."""
        kept = ~np.isin(self.numbers, list(numbers))
        if not kept.any():
            return None
        durations: dict[Action, Ns] = {
            action: np.atleast_1d(ns)[kept] for action, ns in self.replica.durations_ns.items()
        }
        return ReplicaSteps(
            numbers=self.numbers[kept],
            ranks=self.ranks,
            replica=Replica(orders=self.replica.orders, durations_ns=durations),
            window_ends_ns=self.window_ends_ns[kept],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """The closed training actions of one rank, by step, then as they began."""

    rank: RankTimeline
    durations_ns: Ints
    ends_ns: Ints
    first: dict[int, int]
    """Step number -> position of its first action."""
    patterns: dict[int, bytes]
    """Step number -> what it did in which order; steps that did the same share one object."""


def replica_steps(timeline: Timeline) -> tuple[ReplicaSteps, ...]:
    """Every replica in every step in which all its ranks ran pipeline actions, steps of one order together."""
    acted = [one for rank in timeline.ranks if len((one := _acted(rank)).ends_ns)]
    return tuple(steps for ranks in replicas(acted) for steps in _steps_of(ranks))


def replicas(acted: Sequence[Acted]) -> tuple[tuple[Acted, ...], ...]:
    """Ranks with pipeline actions, grouped by the pipeline they are in; only whole ones."""
    grouped: dict[tuple[object, ...], list[Acted]] = defaultdict(list)
    for one in acted:
        grouped[_replica_key(one.rank)].append(one)
    return tuple(tuple(ranks) for ranks in grouped.values() if _is_whole([one.rank for one in ranks]))


def _is_whole(ranks: list[RankTimeline]) -> bool:
    """Whether all members of the pipeline left records: a replay without a stage would explain nothing."""
    members = {
        member for rank in ranks for group in rank.groups if group.axis == PIPELINE_AXIS for member in group.ranks
    }
    return members <= {rank.rank for rank in ranks}


def _replica_key(rank: RankTimeline) -> tuple[object, ...]:
    """The pipeline group's members, where one was used; else the coordinates beside the pipeline's."""
    members = [group.ranks for group in rank.groups if group.axis == PIPELINE_AXIS]
    if members:
        return members[0]
    if PIPELINE_AXIS in rank.coords:
        return tuple(sorted((axis, at) for axis, at in rank.coords.items() if axis != PIPELINE_AXIS))
    return (rank.rank,)


def _actions(rank: RankTimeline) -> NDArray[np.void]:
    """The rank's closed training actions, in the order they began."""
    records = rank.main[rank.main["kind"] == Kind.ACTION]
    training: NDArray[np.void] = records[(records["end_ns"] >= 0) & (records["phase"] != Phase.EVALUATION)]
    return training


def _acted(rank: RankTimeline) -> Acted:
    rows = _actions(rank)
    rows = rows[np.argsort(rows["step"], kind="stable")]
    numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
    starts, ends = (np.searchsorted(rows["step"], numbers, side=side).tolist() for side in ("left", "right"))
    what = np.stack([rows["name"], rows["peer"], rows["sequence"]], axis=1, dtype=np.int64)
    seen: dict[bytes, bytes] = {}
    first, patterns = {}, {}
    for number, start, end in zip(numbers.tolist(), starts, ends, strict=True):
        if end > start:
            pattern = what[start:end].tobytes()
            first[number], patterns[number] = start, seen.setdefault(pattern, pattern)
    durations = rows["end_ns"] - rows["start_ns"]
    return Acted(rank=rank, durations_ns=durations, ends_ns=rows["end_ns"].copy(), first=first, patterns=patterns)


def _steps_of(ranks: Sequence[Acted]) -> list[ReplicaSteps]:
    """The steps in which all of them ran actions, those of one order together."""
    common = sorted(set.intersection(*(set(rank.patterns) for rank in ranks)))
    alike: dict[tuple[bytes, ...], list[int]] = defaultdict(list)
    for number in common:
        alike[tuple(rank.patterns[number] for rank in ranks)].append(number)
    return [_replica_steps(numbers, ranks) for numbers in alike.values()]


def _replica_steps(numbers: list[int], ranks: Sequence[Acted]) -> ReplicaSteps:
    orders: dict[int, tuple[Action, ...]] = {}
    durations: dict[Action, Ns] = {}
    window_ends = []
    for acted in ranks:
        first = np.array([acted.first[number] for number in numbers])
        order = _order(acted, numbers[0])
        orders[acted.rank.rank] = order
        at = first[:, None] + np.arange(len(order))
        durations |= dict(zip(order, acted.durations_ns[at].T, strict=True))
        window_ends.append(acted.ends_ns[at].max(axis=1))
    return ReplicaSteps(
        numbers=np.array(numbers, dtype=np.int64),
        ranks=tuple(acted.rank.rank for acted in ranks),
        replica=Replica(orders=orders, durations_ns=durations),
        window_ends_ns=np.max(window_ends, axis=0),
    )


def one_clock(timeline: Timeline, steps: ReplicaSteps) -> bool:
    """Whether the replica's clocks agree within FINEST of its shortest step: nothing finer is told, or drawn."""
    error_ns = error_between_ns([clock for clock in timeline.clocks if clock.rank in steps.ranks])
    shortest_ns = min(step.length_ns for rank in timeline.ranks if rank.rank in steps.ranks for step in rank.steps)
    return error_ns is not None and error_ns <= FINEST * shortest_ns


def step_timetable(timeline: Timeline, steps: ReplicaSteps, number: int) -> Timetable:
    """What the replica did in one of its steps, ns from the earliest begin of that step on any of its ranks."""
    ranks = {rank.rank: rank for rank in timeline.ranks if rank.rank in steps.ranks}
    begin = min(step.start_ns for rank in ranks.values() for step in rank.steps if step.number == number)
    rows = {}
    for rank, order in steps.replica.orders.items():
        own = _actions(ranks[rank])
        own = own[own["step"] == number]
        times = zip((own["start_ns"] - begin).tolist(), (own["end_ns"] - begin).tolist(), strict=True)
        rows[rank] = tuple(Ran(action, start, end) for action, (start, end) in zip(order, times, strict=True))
    return Timetable(rows=rows, span=max(row[-1].end for row in rows.values()))


def _order(acted: Acted, number: int) -> tuple[Action, ...]:
    """With gradient accumulation a schedule runs several times a step: microbatches count on."""
    what = np.frombuffer(acted.patterns[number], dtype=np.int64).reshape(-1, 3).tolist()
    plain = [(acted.rank.name(name), stage, microbatch) for name, stage, microbatch in what]
    microbatches = max(microbatch for _, _, microbatch in plain) + 1
    rounds: dict[tuple[str, int, int], int] = defaultdict(int)
    order = []
    for kind, stage, microbatch in plain:
        again = rounds[kind, stage, microbatch]
        rounds[kind, stage, microbatch] += 1
        order.append(Action(kind, stage, microbatch + again * microbatches))
    return tuple(order)


def by_number(numbers: Ints, known: Ints, values: Ints, *, missing: int) -> Ints:
    """The value of each of the step numbers, `missing` where it is not known."""
    order = np.argsort(known)
    at = np.searchsorted(known, numbers, sorter=order)
    at = np.append(order, 0)[np.minimum(at, len(known))]
    found = np.append(known, 0)[at] == numbers if len(known) else np.zeros(len(numbers), dtype=bool)
    return np.where(found, np.append(values, missing)[at], missing)


def window_ends(rank: RankTimeline, steps: tuple[ReplicaSteps, ...]) -> Ints:
    """For each complete step, the end of the pipeline window of this rank's replica; the lowest number if none."""
    own = [one for one in steps if rank.rank in one.ranks]
    numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
    known = np.concatenate([one.numbers for one in own] or [numbers[:0]])
    ends = np.concatenate([one.window_ends_ns for one in own] or [numbers[:0]])
    return by_number(numbers, known, ends, missing=NO_WINDOW)
