"""Memory, logged values, and time in modules and pipeline actions, computed from events."""

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, Flag, Kind, Phase
from traincope.metrics import catalogue
from traincope.metrics.labels import INTERNAL_MARK, MAX_MODULES, OTHER_MODULES
from traincope.metrics.metric import Metric
from traincope.metrics.values.points import Node, Points, RankSteps


def memory(node: Node) -> Iterator[Points]:
    """Memory after each step, by rank and measure."""
    for rank in node.ranks:
        records = rank.timeline.of_kind(Kind.MEMORY)
        for name, chosen in _by_name(rank, records[records["phase"] == Phase.NONE]):
            yield Points(
                metric=catalogue.MEMORY,
                labels=(rank.number, name),
                times_ns=chosen["start_ns"],
                values=chosen["value"],
            )


def logged(node: Node) -> Iterator[Points]:
    """Values of `run.log()`: each name by the lowest rank that logs it, in order of first appearance."""
    lowest: dict[str, Points] = {}
    for rank in sorted(node.ranks, key=lambda rank: rank.number):
        for name, chosen in _by_name(rank, rank.timeline.of_kind(Kind.SCALAR)):
            if INTERNAL_MARK not in name:
                values = np.ascontiguousarray(chosen["value"]).view(np.float64)
                points = Points(
                    metric=catalogue.LOGGED,
                    labels=(name,),
                    times_ns=chosen["start_ns"],
                    values=values,
                    rank=rank.number,
                )
                lowest.setdefault(name, points)
    yield from sorted(lowest.values(), key=lambda points: int(points.times_ns[0]))


def modules(node: Node) -> Iterator[Points]:
    """Time in the forward of modules, in order of first appearance. `limit_modules` limits their number."""
    for rank in node.ranks:
        records = _ended(rank)
        spans = records[(records["kind"] == Kind.SPAN) & (records["phase"] == Phase.FORWARD)]
        timed = [
            points
            for name, spans_of_name in _by_name(rank, spans)
            for points in _time(rank, spans_of_name, catalogue.MODULE_TIME, name)
        ]
        yield from sorted(timed, key=lambda points: int(points.times_ns[0]))


def limit_modules(points: Points, *, shown: Collection[str]) -> Points:
    """Keep a module's points under its name, or move them to `other` if `shown` already holds the maximum."""
    rank, name = points.labels
    if name in shown or len(shown) < MAX_MODULES:
        return points
    return Points(metric=points.metric, labels=(rank, OTHER_MODULES), times_ns=points.times_ns, values=points.values)


def actions(node: Node) -> Iterator[Points]:
    """Time in pipeline actions, by rank, stage and action, on the clock of the ledger."""
    for rank in node.ranks:
        records = rank.measured.main if rank.measured.on_device else _ended(rank)
        records = records[(records["kind"] == Kind.ACTION) & (records["flags"] & Flag.DEVICE == 0)]
        for stage in np.unique(records["peer"]).tolist():
            for name, spans_of_name in _by_name(rank, records[records["peer"] == stage]):
                yield from _time(rank, spans_of_name, catalogue.ACTION_TIME, stage, name)


def _ended(rank: RankSteps) -> NDArray[np.void]:
    records = np.concatenate(list(rank.timeline.threads.values()))
    ended: NDArray[np.void] = records[records["end_ns"] != OPEN]
    return ended


def _by_name(rank: RankSteps, records: NDArray[np.void]) -> Iterator[tuple[str, NDArray[np.void]]]:
    names = {number: rank.timeline.name(number) for number in np.unique(records["name"]).tolist()}
    for name in sorted(set(names.values())):
        numbers = [number for number, known in names.items() if known == name]
        yield name, records[np.isin(records["name"], numbers)]


def _time(rank: RankSteps, records: NDArray[np.void], metric: Metric, *labels: object) -> Iterator[Points]:
    """Lengths of events in counted steps."""
    at, ends = rank.ends_of(records["step"].astype(np.int64))
    if len(at):
        lengths = (records["end_ns"] - records["start_ns"])[at]
        yield Points(metric=metric, labels=(rank.number, *labels), times_ns=ends, values=lengths)
