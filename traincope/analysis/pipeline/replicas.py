"""Pipeline replicas: their ranks, the actions of each rank in each step, and the ends of their windows."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.pipeline.schedule import Replica
from traincope.arrays import BEFORE_ALL_NS, Ints, chosen
from traincope.events import Kind, Phase
from traincope.plan.pipeline.actions import Action
from traincope.plan.pipeline.schedule import Ns, TimedAction, Timetable
from traincope.timeline import RankTimeline, Timeline, error_between_ns
from traincope.topology import PIPELINE_AXIS

NO_WINDOW = BEFORE_ALL_NS
"""Value of `window_ends` in a step without a pipeline window."""

RESOLUTION_RATIO = 0.01
"""Share of a step: about the width of one character in a drawing of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSteps:
    """One replica in the steps that all its ranks completed with their actions in the same order."""

    numbers: Ints
    """Step numbers, ascending. The arrays in `replica` and below have one entry per step."""
    ranks: tuple[int, ...]
    replica: Replica
    window_ends_ns: Ints
    """End of the last action of its slowest stage, in each step."""

    def last(self) -> Replica:
        """Return the actions of the last step only."""
        durations = {action: int(np.atleast_1d(ns)[-1]) for action, ns in self.replica.durations_ns.items()}
        return Replica(orders=self.replica.orders, durations_ns=durations)

    def without(self, numbers: frozenset[int]) -> "ReplicaSteps | None":
        """Return the other steps; None if none remains."""
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
class RankActions:
    """Closed training actions of one rank, sorted by step and then by begin."""

    rank: RankTimeline
    durations_ns: Ints
    ends_ns: Ints
    first: dict[int, int]
    """Step number -> position of its first action."""
    patterns: dict[int, bytes]
    """Step number -> encoded order of its actions. Steps with the same order share one object."""


def replica_steps(timeline: Timeline) -> tuple[ReplicaSteps, ...]:
    """Group the steps of every replica by the order of its actions. All its ranks must have run actions in a step."""
    rank_actions = [entry for rank in timeline.ranks if len((entry := _rank_actions(rank)).ends_ns)]
    return tuple(steps for ranks in replicas(rank_actions) for steps in _steps_of(ranks))


def replicas(rank_actions: Sequence[RankActions]) -> tuple[tuple[RankActions, ...], ...]:
    """Group the ranks with pipeline actions by their pipeline. Incomplete pipelines are left out."""
    grouped: dict[tuple[object, ...], list[RankActions]] = defaultdict(list)
    for entry in rank_actions:
        grouped[_replica_key(entry.rank)].append(entry)
    return tuple(tuple(ranks) for ranks in grouped.values() if _is_whole([entry.rank for entry in ranks]))


def _is_whole(ranks: list[RankTimeline]) -> bool:
    """Return whether all members of the pipeline have records: a replay without a stage explains nothing."""
    members = {
        member for rank in ranks for group in rank.groups if group.axis == PIPELINE_AXIS for member in group.ranks
    }
    return members <= {rank.rank for rank in ranks}


def _replica_key(rank: RankTimeline) -> tuple[object, ...]:
    """Return the members of the pipeline's group, or without such a group the coordinates on the other axes."""
    members = [group.ranks for group in rank.groups if group.axis == PIPELINE_AXIS]
    if members:
        return members[0]
    if PIPELINE_AXIS in rank.coords:
        return tuple(sorted((axis, at) for axis, at in rank.coords.items() if axis != PIPELINE_AXIS))
    return (rank.rank,)


def _actions(rank: RankTimeline) -> NDArray[np.void]:
    """Return the rank's closed training actions in the order in which they began."""
    records = rank.main
    training = (records["kind"] == Kind.ACTION) & (records["end_ns"] >= 0) & (records["phase"] != Phase.EVALUATION)
    return chosen(records, training)


def _rank_actions(rank: RankTimeline) -> RankActions:
    rows = _actions(rank)
    rows = chosen(rows, np.argsort(rows["step"], kind="stable"))
    numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
    starts, ends = (np.searchsorted(rows["step"], numbers, side=side).tolist() for side in ("left", "right"))
    what = np.stack([rows["name"], rows["peer"], rows["sequence"]], axis=1, dtype=np.int64)
    interned: dict[bytes, bytes] = {}
    first, patterns = {}, {}
    for number, start, end in zip(numbers.tolist(), starts, ends, strict=True):
        if end > start:
            pattern = what[start:end].tobytes()
            first[number], patterns[number] = start, interned.setdefault(pattern, pattern)
    durations = rows["end_ns"] - rows["start_ns"]
    return RankActions(rank=rank, durations_ns=durations, ends_ns=rows["end_ns"].copy(), first=first, patterns=patterns)


def _steps_of(ranks: Sequence[RankActions]) -> list[ReplicaSteps]:
    """Group the steps in which all the ranks ran actions by their order."""
    common = sorted(set.intersection(*(set(rank.patterns) for rank in ranks)))
    alike: dict[tuple[bytes, ...], list[int]] = defaultdict(list)
    for number in common:
        alike[tuple(rank.patterns[number] for rank in ranks)].append(number)
    return [_replica_steps(numbers, ranks) for numbers in alike.values()]


def _replica_steps(numbers: list[int], ranks: Sequence[RankActions]) -> ReplicaSteps:
    orders: dict[int, tuple[Action, ...]] = {}
    durations: dict[Action, Ns] = {}
    window_ends = []
    for rank_actions in ranks:
        first = np.array([rank_actions.first[number] for number in numbers])
        order = _order(rank_actions, numbers[0])
        orders[rank_actions.rank.rank] = order
        at = first[:, None] + np.arange(len(order))
        durations |= dict(zip(order, rank_actions.durations_ns[at].T, strict=True))
        window_ends.append(rank_actions.ends_ns[at].max(axis=1))
    return ReplicaSteps(
        numbers=np.array(numbers, dtype=np.int64),
        ranks=tuple(rank_actions.rank.rank for rank_actions in ranks),
        replica=Replica(orders=orders, durations_ns=durations),
        window_ends_ns=np.max(window_ends, axis=0),
    )


def one_clock(timeline: Timeline, steps: ReplicaSteps) -> bool:
    """Return whether the replica's clocks agree within RESOLUTION_RATIO of its shortest step."""
    error_ns = error_between_ns([clock for clock in timeline.clocks if clock.rank in steps.ranks])
    shortest_ns = min(step.length_ns for rank in timeline.ranks if rank.rank in steps.ranks for step in rank.steps)
    return error_ns is not None and error_ns <= RESOLUTION_RATIO * shortest_ns


def step_timetable(timeline: Timeline, steps: ReplicaSteps, number: int) -> Timetable:
    """Return the replica's actions in one step, in ns from the earliest begin of the step on any of its ranks."""
    ranks = {rank.rank: rank for rank in timeline.ranks if rank.rank in steps.ranks}
    begin = min(step.start_ns for rank in ranks.values() for step in rank.steps if step.number == number)
    rows = {}
    for rank, order in steps.replica.orders.items():
        selected = _actions(ranks[rank])
        selected = selected[selected["step"] == number]
        times = zip((selected["start_ns"] - begin).tolist(), (selected["end_ns"] - begin).tolist(), strict=True)
        rows[rank] = tuple(TimedAction(action, start, end) for action, (start, end) in zip(order, times, strict=True))
    return Timetable(rows=rows, span=max(row[-1].end for row in rows.values()))


def _order(rank_actions: RankActions, number: int) -> tuple[Action, ...]:
    """Decode the order of a step. With gradient accumulation microbatches are numbered across the rounds."""
    what = np.frombuffer(rank_actions.patterns[number], dtype=np.int64).reshape(-1, 3).tolist()
    plain = [(rank_actions.rank.name(name), stage, microbatch) for name, stage, microbatch in what]
    microbatches = max(microbatch for _, _, microbatch in plain) + 1
    rounds: dict[tuple[str, int, int], int] = defaultdict(int)
    order = []
    for kind, stage, microbatch in plain:
        round_number = rounds[kind, stage, microbatch]
        rounds[kind, stage, microbatch] += 1
        order.append(Action(kind, stage, microbatch + round_number * microbatches))
    return tuple(order)


def by_number(numbers: Ints, known: Ints, values: Ints, *, missing: int) -> Ints:
    """Look up the value of each step number; `missing` if it is unknown."""
    order = np.argsort(known)
    at = np.searchsorted(known, numbers, sorter=order)
    at = np.append(order, 0)[np.minimum(at, len(known))]
    matched = np.append(known, 0)[at] == numbers if len(known) else np.zeros(len(numbers), dtype=bool)
    return np.where(matched, np.append(values, missing)[at], missing)


def window_ends(rank: RankTimeline, steps: tuple[ReplicaSteps, ...]) -> Ints:
    """Return, for each complete step, the end of the pipeline window of this rank's replica, or NO_WINDOW."""
    selected = [entry for entry in steps if rank.rank in entry.ranks]
    numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
    known = np.concatenate([entry.numbers for entry in selected] or [numbers[:0]])
    ends = np.concatenate([entry.window_ends_ns for entry in selected] or [numbers[:0]])
    return by_number(numbers, known, ends, missing=NO_WINDOW)
