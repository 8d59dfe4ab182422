"""Records of one worker, as the recorder would have written them, from its operations.

The computations are phases and pipeline actions of the training thread. Its gaps are stalls: for the receive or
collective that ran in the gap and ended first, otherwise for a send. So the report's terms add up to each step.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints
from traincope.events import NO_PEER, NO_STEP, Flag, Kind, Phase
from traincope.store import RECORD_DTYPE
from traincope.store.side_tables.operations import MESSAGES, PAIRS, OperationKind, Operations
from traincope.topology import PIPELINE_AXIS, Group

SCHEDULE = "table"
"""Name of the schedule in pipeline actions: a table does not name it."""
RULE = "table"
PHASES = {
    OperationKind.FORWARD: Phase.FORWARD,
    OperationKind.BACKWARD: Phase.BACKWARD,
    OperationKind.OPTIMIZER: Phase.OPTIMIZER,
    OperationKind.GC: Phase.GC,
}
ACTIONS = {OperationKind.FORWARD: "F", OperationKind.BACKWARD: "B"}
COLLECTIVES = {
    OperationKind.GATHER_PARAMETERS: ("dp", "all_gather"),
    OperationKind.REDUCE_GRADIENTS: ("dp", "reduce_scatter"),
    OperationKind.REDUCE_SEPARATE: ("dp", "all_reduce"),
    OperationKind.REDUCE_LAYERNORM: ("tp", "all_reduce"),
    OperationKind.REDUCE_EMBEDDING: ("embedding", "all_reduce"),
    OperationKind.CLIP: ("world", "all_reduce"),
}
"""Kind -> (axis, operation)."""
GROUPS = {
    OperationKind.GATHER_PARAMETERS: 1,
    OperationKind.REDUCE_GRADIENTS: 2,
    OperationKind.REDUCE_SEPARATE: 3,
    OperationKind.REDUCE_LAYERNORM: 4,
    OperationKind.REDUCE_EMBEDDING: 5,
    OperationKind.CLIP: 6,
}
"""Kind -> number of its group in `_groups`. Each has a group of its own, so its count is the same on all ranks."""
Row = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Records of one worker, and the names and groups that they refer to."""

    rank: int
    coords: dict[str, int]
    records: NDArray[np.void]
    names: tuple[str, ...]
    groups: tuple[Group, ...]


class _Span(NamedTuple):
    start_ns: int
    end_ns: int


def worker_records(operations: Operations) -> Iterator[Worker]:
    """Yield the records of each worker, in order of rank."""
    spans = _step_spans(operations)
    places = _ranks_by_place(operations)
    names = tuple(dict.fromkeys(("send", "recv", SCHEDULE, *ACTIONS.values(), *_names(operations))))
    order = np.argsort(operations.rank, kind="stable")
    ranks, first = np.unique(operations.rank[order], return_index=True)
    for rank, rows in zip(ranks.tolist(), np.split(order, first[1:]), strict=True):
        own = operations.only(rows)
        stage, dp_rank = int(own.stage[0]), int(own.dp_rank[0])
        groups = _groups(places, rank=rank, dp_rank=dp_rank, stage=stage)
        builder = _Builder(own, names=names, places=places)
        yield Worker(
            rank=rank,
            coords={PIPELINE_AXIS: stage, "dp": dp_rank},
            records=builder.records(spans),
            names=names,
            groups=groups,
        )


def _names(operations: Operations) -> Iterator[str]:
    for name in operations.kinds:
        kind = OperationKind(name) if name in list(OperationKind) else None
        yield COLLECTIVES[kind][1] if kind in COLLECTIVES else name


def _ranks_by_place(operations: Operations) -> Ints:
    """Return the rank at each (dp_rank, stage)."""
    places = np.zeros((operations.num_replicas, operations.num_stages), dtype=np.int64)
    places[operations.dp_rank, operations.stage] = operations.rank
    return places


def _groups(places: Ints, *, rank: int, dp_rank: int, stage: int) -> tuple[Group, ...]:
    """Groups of a worker, numbered as in `GROUPS`. The tensor group holds the one rank that the table has."""
    pipeline, replicas = places[dp_rank].tolist(), places[:, stage].tolist()
    ends = sorted({pipeline[0], pipeline[-1]})
    everyone = sorted(places.reshape(-1).tolist())
    members = {
        f"pp-{dp_rank}": (PIPELINE_AXIS, pipeline),
        f"gather-{stage}": ("dp", replicas),
        f"reduce-{stage}": ("dp", replicas),
        f"separate-{stage}": ("dp", replicas),
        f"tp-{rank}": ("tp", [rank]),
        f"embedding-{dp_rank}" if rank in ends else f"embedding-of-{rank}": (
            "embedding",
            ends if rank in ends else [rank],
        ),
        "world": ("world", everyone),
    }
    return tuple(
        Group(number=number, key=key, axis=axis, rule=RULE, ranks=tuple(ranks))
        for number, (key, (axis, ranks)) in enumerate(members.items())
    )


def _step_spans(operations: Operations) -> dict[int, _Span]:
    """Return step -> from the first start to the last end on any worker."""
    steps, first_ns, last_ns = operations.step_bounds()
    return {
        step: _Span(start, end)
        for step, start, end in zip(steps.tolist(), first_ns.tolist(), last_ns.tolist(), strict=True)
    }


class _Builder:
    """The records of one worker."""

    def __init__(self, operations: Operations, *, names: tuple[str, ...], places: Ints) -> None:
        self._operations = operations
        self._stage, self._dp_rank = int(operations.stage[0]), int(operations.dp_rank[0])
        self._places = places
        self._number = {name: number for number, name in enumerate(names)}
        self._rows: list[Row] = []

    def records(self, spans: dict[int, _Span]) -> NDArray[np.void]:
        """Return all records, in order of start."""
        counts: dict[OperationKind, int] = defaultdict(int)
        operations = self._operations
        steps, first = np.unique(operations.step, return_index=True)
        ends = [*first[1:].tolist(), len(operations)]
        last_ns = 0
        for step, begin, end in zip(steps.tolist(), first.tolist(), ends, strict=True):
            until_ns = spans[step].end_ns
            if end < len(operations):
                until_ns = min(until_ns, int(operations.start_ns[end:].min()))
            own_last_ns = int(operations.end_ns[begin:end].max())
            span = _Span(max(spans[step].start_ns, last_ns), max(until_ns, own_last_ns))
            self._add(Kind.STEP, span, step, flags=Flag.DETAILED)
            self._step(step, slice(begin, end), span, counts)
            last_ns = span.end_ns
        rows = self._rows
        records = np.zeros(len(rows), dtype=RECORD_DTYPE)
        for name in rows[0]:
            records[name] = [row[name] for row in rows]
        return records[np.argsort(records["start_ns"], kind="stable")]

    def _step(self, step: int, rows: slice, span: _Span, counts: dict[OperationKind, int]) -> None:
        operations = self._operations
        main: list[_Span] = []
        waits: list[tuple[_Span, bool, Row]] = []
        cursor_ns = span.start_ns
        columns = (getattr(operations, name)[rows].tolist() for name in ("kind", "start_ns", "end_ns", "microbatch"))
        for code, start_ns, end_ns, microbatch, part in zip(*columns, operations.part[rows].tolist(), strict=True):
            name, own = operations.kinds[code], _Span(start_ns, end_ns)
            if name not in list(OperationKind):
                self._add(Kind.SPAN, own, step, name=self._number[name])
                continue
            kind = OperationKind(name)
            if kind in PHASES:
                own = _Span(max(start_ns, cursor_ns), max(end_ns, cursor_ns))
                cursor_ns = own.end_ns
                main.append(own)
                if kind in ACTIONS and operations.num_stages > 1:
                    self._action(own, step, ACTIONS[kind], stage=part, microbatch=microbatch)
                self._add(Kind.PHASE, own, step, name=self._number[name], phase=PHASES[kind])
            else:
                row = self._collective(kind, own, step, count=counts[kind])
                counts[kind] += 1
                waits.append((own, kind in PAIRS, row))
        self._stalls(main, waits, span)

    def _action(self, span: _Span, step: int, name: str, *, stage: int, microbatch: int) -> None:
        schedule = self._number[SCHEDULE]
        self._add(Kind.ACTION, span, step, name=self._number[name], group=schedule, sequence=microbatch, peer=stage)

    def _collective(self, kind: OperationKind, span: _Span, step: int, *, count: int) -> Row:
        if kind not in MESSAGES:
            _, operation = COLLECTIVES[kind]
            name, group = self._number[operation], GROUPS[kind]
            return self._add(Kind.COLLECTIVE, span, step, name=name, group=group, sequence=count)
        compute, distance = MESSAGES[kind]
        peer = int(self._places[self._dp_rank, (self._stage + distance) % self._places.shape[1]])
        name = self._number["send" if kind in PAIRS else "recv"]
        backward, flags = int(compute is OperationKind.BACKWARD), Flag.POINT_TO_POINT
        return self._add(Kind.COLLECTIVE, span, step, name=name, sequence=count, peer=peer, tag=backward, flags=flags)

    def _stalls(self, main: list[_Span], waits: list[tuple[_Span, bool, Row]], span: _Span) -> None:
        """Add the stalls in the gaps of the main stream."""
        edges = [span.start_ns, *(edge for own in main for edge in own), span.end_ns]
        gaps = [_Span(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]
        waits.sort(key=lambda wait: wait[0])
        active: list[tuple[_Span, bool, Row]] = []
        begun = 0
        for gap in gaps:
            while begun < len(waits) and waits[begun][0].start_ns < gap.end_ns:
                active.append(waits[begun])
                begun += 1
            active = [wait for wait in active if wait[0].end_ns > gap.start_ns]
            free = [gap]
            for own, _, row in sorted(active, key=lambda wait: (wait[1], wait[0].end_ns)):
                taken = [_Span(max(own.start_ns, part.start_ns), min(own.end_ns, part.end_ns)) for part in free]
                for part in taken:
                    if part.end_ns > part.start_ns:
                        self._rows.append({**row, "kind": Kind.STALL, "start_ns": part.start_ns, "end_ns": part.end_ns})
                free = [rest for part in free for rest in _without(part, own)]

    def _add(self, kind: Kind, span: _Span, step: int = NO_STEP, **fields: int) -> Row:
        row: Row = {
            "start_ns": span.start_ns,
            "end_ns": span.end_ns,
            "step": step,
            "name": 0,
            "group": 0,
            "sequence": 0,
            "peer": NO_PEER,
            "tag": 0,
            "flags": 0,
            "phase": Phase.NONE,
            "kind": kind,
            **fields,
        }
        self._rows.append(row)
        return row


def _without(part: _Span, taken: _Span) -> Iterator[_Span]:
    """Yield what remains of `part`."""
    for start_ns, end_ns in (
        (part.start_ns, min(part.end_ns, taken.start_ns)),
        (max(part.start_ns, taken.end_ns), part.end_ns),
    ):
        if end_ns > start_ns:
            yield _Span(start_ns, end_ns)
