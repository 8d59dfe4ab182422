"""Parts of a job that train the same model and exchange nothing, as where a wrapper got one of two axes of a mesh.

All ranks are compared, from their second step on: before, wrappers make the replicas equal. Parts that are averaged at
intervals exchange something in the steps that are seen, or torch counts more than is recorded.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.faults.anomalies.unreduced import MANY_STEPS, gradient_bytes, trains
from traincope.events import Kind
from traincope.timeline import RankTimeline, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Parts of equal size, of at least two ranks each."""

    parts: tuple[tuple[int, ...], ...]
    num_steps: int
    """Steps with detail, on each rank."""
    axis: str | None
    """Mesh axis along which nothing is exchanged; None if the mesh shows no single one."""


def ranks_apart(timeline: Timeline) -> Apart | None:
    """Find such parts; None if all ranks are connected, or if the records do not show that they are not."""
    if timeline.run.missing or timeline.run.info.imported or not all(map(trains, timeline.ranks)):
        return None
    num_steps = min((sum(step.detailed for step in rank.steps) for rank in timeline.ranks), default=0)
    if num_steps < MANY_STEPS:
        return None
    parts = _connected(timeline.ranks, {rank.rank: rank.info.issued_collectives for rank in timeline.run.ranks})
    if len(parts) < 2 or len({len(part) for part in parts}) != 1 or len(parts[0]) < 2:
        return None
    gradients = {rank.rank: gradient_bytes(rank) for rank in timeline.ranks}
    if None in gradients.values() or len({tuple(gradients[rank] for rank in part) for part in parts}) != 1:
        return None
    return Apart(parts=parts, num_steps=num_steps, axis=_axis(timeline, parts))


def _connected(ranks: Iterable[RankTimeline], issued: Mapping[int, Mapping[str, int]]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks that collectives and messages join in later steps than the first, directly or by others.

    `issued`: rank -> torch's counts by the key of the group, as far as they are known.
    """
    joined: dict[int, set[int]] = {}
    for rank in ranks:
        used = _used(rank) | _unseen(rank, issued[rank.rank])
        members = {rank.rank}.union(*(group.ranks for group in rank.groups if group.number in used))
        for other in list(members):
            members |= joined.get(other, set())
        joined |= dict.fromkeys(members, members)
    return tuple(sorted({tuple(sorted(members)) for members in joined.values()}))


def _used(rank: RankTimeline) -> set[int]:
    """Numbers of the groups that it communicates on in later steps than the first, or between steps from then on."""
    second_ns = rank.steps[1].start_ns if len(rank.steps) > 1 else 0
    used: set[int] = set()
    for records in rank.threads.values():
        sent = records[(records["kind"] == Kind.COLLECTIVE) & (records["start_ns"] >= second_ns)]
        sent = sent[sent["start_ns"] <= rank.steps[-1].end_ns]
        used |= set(np.unique(sent["group"]).tolist())
    return used


def _unseen(rank: RankTimeline, issued: Mapping[str, int]) -> set[int]:
    """Numbers of the groups that it may use in steps without detail: torch counted more than the records have."""
    if all(step.detailed for step in rank.steps):
        return set()
    sent = [records["group"][records["kind"] == Kind.COLLECTIVE] for records in rank.threads.values()]
    recorded = Counter(np.concatenate(sent).tolist())
    return {group.number for group in rank.groups if issued.get(group.key, 0) > recorded[group.number]}


def _axis(timeline: Timeline, parts: tuple[tuple[int, ...], ...]) -> str | None:
    """Return the axis on which the ranks of each part have one coordinate, and those of two parts different ones."""
    coords = {rank.rank: rank.coords for rank in timeline.ranks}
    for axis in coords[parts[0][0]]:
        places = [{coords[rank].get(axis) for rank in part} for part in parts]
        if all(len(place) == 1 for place in places) and len(set.union(*places)) == len(parts):
            return axis
    return None
