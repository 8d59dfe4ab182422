"""Latency and bandwidth of each collective and of messages on each mesh axis."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from statistics import median

from traincope.plan.layout.bus import bus_factor
from traincope.preflight.measurements import Measurements, Round
from traincope.preflight.robust import Fit, fit
from traincope.topology import axis_order

MESSAGE = "send"
"""Name of messages between neighbours, as in `plan.layout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One operation on one axis. Times are medians over the axis's groups, or pairs of neighbours."""

    axis: str
    operation: str
    ranks: int
    """Ranks of a group."""
    groups: tuple[tuple[int, ...], ...]
    """Members of each group that was measured; of messages, the pairs."""
    seconds: dict[int, float]
    """Bytes -> time."""
    fit: Fit | None
    """seconds = latency + bytes x bus factor / bandwidth, so the bandwidth is comparable between operations; None with
    fewer than two sizes."""


def sweeps(measured: Measurements) -> tuple[Sweep, ...]:
    """All sweeps, in the order of the axes."""
    every = (*_collectives(measured), *_messages(measured))
    return tuple(sorted(every, key=lambda sweep: (axis_order(sweep.axis), sweep.operation == MESSAGE)))


def _collectives(measured: Measurements) -> Iterator[Sweep]:
    by_kind: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    members: dict[tuple[str, str], set[tuple[int, ...]]] = defaultdict(set)
    for each in measured.sweeps:
        by_kind[each.axis, each.operation][each.num_bytes].append(median(each.seconds))
        members[each.axis, each.operation].add(each.ranks)
    for (axis, operation), times in by_kind.items():
        yield _sweep(axis, operation, times, groups=members[axis, operation])


def _messages(measured: Measurements) -> Iterator[Sweep]:
    for axis, neighbours in measured.neighbours.items():
        edges = frozenset(neighbours)
        times: dict[int, list[float]] = defaultdict(list)
        for each in measured.pairs:
            if each.round is Round.FIRST and each.ranks in edges:
                times[each.num_bytes].append(median(each.seconds))
        if times:
            yield _sweep(axis, MESSAGE, times, groups=edges)


def _sweep(axis: str, operation: str, times: dict[int, list[float]], *, groups: Collection[tuple[int, ...]]) -> Sweep:
    members = tuple(sorted(tuple(sorted(group)) for group in groups))
    ranks = len(members[0])
    seconds = {num_bytes: median(times[num_bytes]) for num_bytes in sorted(times)}
    factor = bus_factor(operation, ranks)
    return Sweep(
        axis=axis,
        operation=operation,
        ranks=ranks,
        groups=members,
        seconds=seconds,
        fit=fit({num_bytes * factor: each for num_bytes, each in seconds.items()}),
    )
