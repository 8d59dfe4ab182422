"""Pipeline replicas: which ranks form one, what each did in each step, when its window ends."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.schedule import Action, Replica
from traincope.events import Kind, Phase
from traincope.timeline import RankTimeline, Timeline
from traincope.topology import PIPELINE_AXIS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStep:
    """One replica in one step that all its ranks completed."""

    number: int
    ranks: tuple[int, ...]
    replica: Replica
    window_end_ns: int
    """End of the last action of its slowest stage."""


def replica_steps(timeline: Timeline) -> tuple[ReplicaStep, ...]:
    """Every (replica, step) in which every rank of the replica ran pipeline actions."""
    found = []
    for ranks in replicas(timeline):
        numbers = set.intersection(*({step.number for step in rank.steps} for rank in ranks))
        actions = {rank.rank: _actions(rank) for rank in ranks}
        for number in sorted(numbers):
            records = {rank: rows[rows["step"] == number] for rank, rows in actions.items()}
            step = _replica_step(number, records, ranks)
            if step is not None:
                found.append(step)
    return tuple(found)


def replicas(timeline: Timeline) -> tuple[tuple[RankTimeline, ...], ...]:
    """Ranks with pipeline actions, grouped by the pipeline they are in; only whole ones."""
    grouped: dict[tuple[object, ...], list[RankTimeline]] = defaultdict(list)
    for rank in timeline.ranks:
        if len(_actions(rank)):
            grouped[_replica_key(rank)].append(rank)
    return tuple(tuple(ranks) for ranks in grouped.values() if _is_whole(ranks))


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
    records = rank.of_kind(Kind.ACTION)
    training: NDArray[np.void] = records[(records["end_ns"] >= 0) & (records["phase"] != Phase.EVALUATION)]
    return training


def _replica_step(
    number: int, records: dict[int, NDArray[np.void]], ranks: tuple[RankTimeline, ...]
) -> ReplicaStep | None:
    if not all(len(rows) for rows in records.values()):
        return None
    orders: dict[int, tuple[Action, ...]] = {}
    durations: dict[Action, int] = {}
    for rank in ranks:
        order = _order(rank, records[rank.rank])
        orders[rank.rank] = order
        rows = records[rank.rank]
        durations |= dict(zip(order, (rows["end_ns"] - rows["start_ns"]).tolist(), strict=True))
    return ReplicaStep(
        number=number,
        ranks=tuple(rank.rank for rank in ranks),
        replica=Replica(orders=orders, durations_ns=durations),
        window_end_ns=max(int(rows["end_ns"].max()) for rows in records.values()),
    )


def _order(rank: RankTimeline, records: NDArray[np.void]) -> tuple[Action, ...]:
    """With gradient accumulation a schedule runs several times a step: microbatches count on."""
    plain = [(rank.name(int(r["name"])), int(r["peer"]), int(r["sequence"])) for r in records]
    microbatches = max(microbatch for _, _, microbatch in plain) + 1
    rounds: dict[tuple[str, int, int], int] = defaultdict(int)
    order = []
    for kind, stage, microbatch in plain:
        again = rounds[kind, stage, microbatch]
        rounds[kind, stage, microbatch] += 1
        order.append(Action(kind, stage, microbatch + again * microbatches))
    return tuple(order)


def window_ends(rank: RankTimeline, steps: tuple[ReplicaStep, ...]) -> dict[int, int]:
    """Step number -> end of the pipeline window of the replica this rank is in."""
    return {step.number: step.window_end_ns for step in steps if rank.rank in step.ranks}
