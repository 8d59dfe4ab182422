"""Dependencies between the operations of an imported table, and their replay with other durations.

An operation begins when all that it depends on has ended. These are, as in "Understanding Stragglers in Large Model
Training Using What-if Analysis" (Lin et al., OSDI 2025) and its published analyzer:

- the operation before it on its stream. A worker has one stream for its computations and all that follows them, one
  per kind of message, and one for collectives of its stage that run during the computations;
- for a send, the computation before it; for a computation, its receive; for a receive, the computation before the one
  that receives;
- for the first forward of a part of the model, the last gather of its parameters; for a reduction of its gradients
  during the computations, the part's last backward before it;
- for the end of a communication, the begin of all its members.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Floats, Ints
from traincope.store.side_tables.operations import MESSAGES, OF_STAGE, PAIRS, OperationKind, Operations
from traincope.timeline.intervals.painting import ranges

AFTERWARDS = (
    OperationKind.GC,
    OperationKind.REDUCE_LAYERNORM,
    OperationKind.REDUCE_EMBEDDING,
    OperationKind.REDUCE_GRADIENTS,
    OperationKind.REDUCE_SEPARATE,
    OperationKind.CLIP,
    OperationKind.OPTIMIZER,
)
"""Kinds in the study's order after the computations."""
COMPUTE = (OperationKind.FORWARD, OperationKind.BACKWARD)
EARLY_NS = 50_000
"""A collective that begins this long before the last computation ends runs during the computations."""

Edges = NDArray[np.int64]
"""Rows of (operation, operation that depends on it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Operations as a graph: first one node per operation, its end; then one per communication part, its begin; then
    one per communication, the begin of its last part.
    """

    num_operations: int
    step: Ints
    """Position of each operation's step among all steps."""
    num_steps: int
    communication: Ints
    """Number of each operation's communication; -1 for a computation."""
    levels: tuple[tuple[Ints, Ints, Ints], ...]
    """Nodes that only depend on earlier levels, the nodes that they depend on, and where each one's begin there."""

    def replay(self, durations_ns: Floats) -> Floats:
        """Return the length of each step in ns if operations take `durations_ns`: for communication, the transfer."""
        ends_ns = np.zeros(self._num_nodes)
        own_ns = np.zeros(self._num_nodes)
        own_ns[: self.num_operations] = durations_ns
        for nodes, before, first in self.levels:
            ready_ns = np.maximum.reduceat(ends_ns[before], first) if len(before) else 0.0
            ends_ns[nodes] = ready_ns + own_ns[nodes]
        lengths_ns = np.zeros(self.num_steps)
        np.maximum.at(lengths_ns, self.step, ends_ns[: self.num_operations])
        return lengths_ns

    @property
    def _num_nodes(self) -> int:
        communicates = self.communication[self.communication >= 0]
        return self.num_operations + len(communicates) + len(np.unique(communicates))


def operation_order(operations: Operations) -> Order | None:
    """Build the graph of operations of known kinds, in order of step, rank and start; None if it has a cycle.

    Collectives on several streams may begin in another order on another rank, which gives a cycle. What follows the
    computations then has the study's order.
    """
    recorded = _in_order(operations, np.zeros(len(operations), dtype=np.int64))
    return recorded or _in_order(operations, _published_place(operations))


def _published_place(operations: Operations) -> Ints:
    """Return the place of each row in the study's order of what follows the computations; 0 for what does not."""
    place = np.zeros(len(operations), dtype=np.int64)
    for at, kind in enumerate(AFTERWARDS, start=1):
        place[operations.are(kind)] = at
    return np.where(_follows_computations(operations), place, 0)


def _in_order(operations: Operations, place: Ints) -> Order | None:
    """Build the graph with the main stream of each worker in order of place, then of start."""
    communication = _communications(operations)
    edges = np.concatenate([np.empty((0, 2), dtype=np.int64), *_dependencies(operations, place)])
    count = len(operations)
    parts = np.flatnonzero(communication >= 0)
    begin = np.arange(count)
    begin[parts] = count + np.arange(len(parts))
    meeting = count + len(parts) + communication[parts]
    edges = np.concatenate(
        [
            np.stack([edges[:, 0], begin[edges[:, 1]]], axis=1),
            np.stack([begin[parts], meeting], axis=1),
            np.stack([meeting, parts], axis=1),
        ]
    )
    levels = _levels(edges, count=count + len(parts) + int(communication.max(initial=-1)) + 1)
    if levels is None:
        return None
    steps, step = np.unique(operations.step, return_inverse=True)
    return Order(
        num_operations=count,
        step=step.reshape(-1),
        num_steps=len(steps),
        communication=communication,
        levels=levels,
    )


def _communications(operations: Operations) -> Ints:
    """Number the communications: the n-th of a kind in a step, among the ranks that share it. -1: a computation.

    The gradients of layer norms are summed between tensor-parallel ranks, of which a table has one: a computation.
    """
    number = np.full(len(operations), -1)
    keys = np.zeros((len(operations), 4), dtype=np.int64)
    chosen = np.zeros(len(operations), dtype=bool)
    for at, (send, receive) in enumerate(PAIRS.items()):
        for kind in (send, receive):
            rows = np.flatnonzero(operations.are(kind))
            back = 0 if kind is send else MESSAGES[send][1]
            sender = (operations.stage[rows] - back) % operations.num_stages
            group = operations.dp_rank[rows] * operations.num_stages + sender
            keys[rows] = np.stack([operations.step[rows], np.full(len(rows), at), group, _ordinal(operations, rows)], 1)
            chosen[rows] = True
    shared = dict.fromkeys(OF_STAGE, operations.stage)
    shared[OperationKind.REDUCE_EMBEDDING] = operations.dp_rank
    shared[OperationKind.CLIP] = np.zeros(len(operations), dtype=np.int64)
    for at, (kind, group) in enumerate(shared.items(), start=len(PAIRS)):
        rows = np.flatnonzero(operations.are(kind))
        keys[rows] = np.stack(
            [operations.step[rows], np.full(len(rows), at), group[rows], _ordinal(operations, rows)], axis=1
        )
        chosen[rows] = True
    if chosen.any():
        number[chosen] = np.unique(keys[chosen], axis=0, return_inverse=True)[1].reshape(-1)
    return number


def _dependencies(operations: Operations, place: Ints) -> Iterator[Edges]:
    """Yield the dependencies within each worker."""
    during = operations.are(*OF_STAGE) & (operations.start_ns < _last_compute_ns(operations) - EARLY_NS)
    messages = operations.are(*MESSAGES)
    main = np.flatnonzero(~messages & ~during)
    main = main[np.lexsort((place[main], _worker(operations)[main]))]
    yield _chain(operations, main)
    yield _chain(operations, np.flatnonzero(during))
    for send, receive in PAIRS.items():
        compute, distance = MESSAGES[send]
        yield from _messages(operations, send, receive, compute, distance=distance)
    yield from _parts_of_model(operations, during, main)


def _messages(
    operations: Operations, send: OperationKind, receive: OperationKind, compute: OperationKind, *, distance: int
) -> Iterator[Edges]:
    """Yield the dependencies of one direction's messages. The n-th message belongs to the n-th such computation."""
    computed = np.flatnonzero(operations.are(compute))
    last = int(operations.part.max())
    target, source = operations.part[computed] + distance, operations.part[computed] - distance
    senders = computed[(target >= 0) & (target <= last)]
    has_source = (source >= 0) & (source <= last)
    sent, received = np.flatnonzero(operations.are(send)), np.flatnonzero(operations.are(receive))
    yield _chain(operations, sent)
    yield _chain(operations, received)
    yield np.stack([senders, sent], axis=1)
    yield np.stack([received, computed[has_source]], axis=1)
    before = np.append(-1, computed[:-1])
    same = (before >= 0) & (_worker(operations)[before] == _worker(operations)[computed]) & has_source
    of_receive = np.full(len(computed), -1)
    of_receive[has_source] = received
    yield np.stack([before[same], of_receive[same]], axis=1)


def _parts_of_model(operations: Operations, during: Bools, main: Ints) -> Iterator[Edges]:
    """Yield the dependencies between the main stream and the collectives that run during the computations."""
    worker = _worker(operations)
    key = worker * (int(operations.chunk.max()) + 1) + operations.chunk
    gathers = np.flatnonzero(during & operations.are(OperationKind.GATHER_PARAMETERS))
    forwards = np.flatnonzero(operations.are(OperationKind.FORWARD))
    yield _joined(_last_of(gathers, key), _first_of(forwards, key), key)
    reduces = np.flatnonzero(during & operations.are(OperationKind.REDUCE_GRADIENTS, OperationKind.REDUCE_SEPARATE))
    yield _latest_before(operations, np.flatnonzero(operations.are(OperationKind.BACKWARD)), reduces, key=key)
    after = main[_follows_computations(operations)[main]]
    yield _joined(_last_of(np.flatnonzero(during), worker), _first_of(after, worker), worker)


def _follows_computations(operations: Operations) -> Bools:
    """Mark the rows that begin after the computations of their worker."""
    late: Bools = operations.start_ns >= _last_compute_ns(operations) - EARLY_NS
    return late & ~operations.are(*COMPUTE)


def _latest_before(operations: Operations, sources: Ints, targets: Ints, *, key: Ints) -> Edges:
    """Join each target with the last source of its key that had ended when it began."""
    rows = np.concatenate([sources, targets])
    is_target = np.arange(len(rows)) >= len(sources)
    times_ns = np.where(is_target, operations.start_ns[rows] + EARLY_NS, operations.end_ns[rows])
    order = np.lexsort((is_target, times_ns, key[rows]))
    latest = np.maximum.accumulate(np.where(is_target[order], -1, np.arange(len(order))))
    at = np.flatnonzero(is_target[order] & (latest >= 0))
    source, target = rows[order[latest[at]]], rows[order[at]]
    same = key[source] == key[target]
    return np.stack([source[same], target[same]], axis=1)


def _first_of(rows: Ints, key: Ints) -> Ints:
    """Return the first of the rows with each key, in order of key."""
    return rows[np.unique(key[rows], return_index=True)[1]]


def _last_of(rows: Ints, key: Ints) -> Ints:
    """Return the last of the rows with each key, in order of key."""
    return _first_of(rows[::-1], key)


def _joined(before: Ints, after: Ints, key: Ints) -> Edges:
    """Join rows of equal key. Each key is at most once in either, in ascending order."""
    _, first, second = np.intersect1d(key[before], key[after], assume_unique=True, return_indices=True)
    return np.stack([before[first], after[second]], axis=1)


def _chain(operations: Operations, rows: Ints) -> Edges:
    """Join each of the rows, in order of worker, with the next one of its worker."""
    worker = _worker(operations)[rows]
    same = worker[1:] == worker[:-1]
    return np.stack([rows[:-1][same], rows[1:][same]], axis=1)


def _ordinal(operations: Operations, rows: Ints) -> Ints:
    """Return the position of each of the ascending rows among those of its worker."""
    _, first, worker = np.unique(_worker(operations)[rows], return_index=True, return_inverse=True)
    position: Ints = np.arange(len(rows)) - first[worker.reshape(-1)]
    return position


def _worker(operations: Operations) -> Ints:
    """Number the workers of each step."""
    changed = (np.diff(operations.step) != 0) | (np.diff(operations.rank) != 0)
    return np.cumsum(np.append(0, changed))


def _last_compute_ns(operations: Operations) -> Ints:
    """Return the end of the last computation of each row's worker."""
    worker, computes = _worker(operations), operations.are(*COMPUTE)
    last_ns = np.zeros(int(worker[-1]) + 1, dtype=np.int64)
    np.maximum.at(last_ns, worker[computes], operations.end_ns[computes])
    return last_ns[worker]


def _levels(edges: Edges, *, count: int) -> tuple[tuple[Ints, Ints, Ints], ...] | None:
    """Sort `count` nodes into levels; None if the edges have a cycle."""
    by_source, by_target = edges[np.argsort(edges[:, 0])], edges[np.argsort(edges[:, 1])]
    out, into = (np.searchsorted(side, np.arange(count + 1)) for side in (by_source[:, 0], by_target[:, 1]))
    waiting = np.diff(into)
    nodes = np.flatnonzero(waiting == 0)
    levels = [(nodes, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))]
    seen = len(nodes)
    while len(nodes):
        reached = by_source[ranges(out[nodes], out[nodes + 1]), 1]
        np.subtract.at(waiting, reached, 1)
        reached = np.unique(reached)
        nodes = reached[waiting[reached] == 0]
        if len(nodes):
            lengths = into[nodes + 1] - into[nodes]
            before = by_target[ranges(into[nodes], into[nodes + 1]), 0]
            levels.append((nodes, before, np.cumsum(lengths) - lengths))
            seen += len(nodes)
    return tuple(levels) if seen == count else None
