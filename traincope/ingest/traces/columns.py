"""Columns of the events that are kept from a trace, growing batch by batch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from traincope.arrays import AFTER_ALL_NS, Bools, Ints
from traincope.events import Work
from traincope.ingest.traces.batches import Batch, Numbers
from traincope.ingest.traces.collectives import ANNOTATION_OF, OPERATOR, collective, sizes
from traincope.ingest.traces.recorded_call import recorded
from traincope.ingest.traces.shape_bytes import FORMULAS as BYTES
from traincope.ingest.traces.shape_bytes import shape_bytes
from traincope.ingest.traces.shape_flops import FORMULAS as FLOPS
from traincope.ingest.traces.shape_flops import shape_flops
from traincope.store.side_tables.traces import (
    CODES,
    HOST_OPERATOR,
    KERNEL,
    MEMORY,
    UNKNOWN,
    Lane,
    Trace,
    TraceCollective,
    TraceInfo,
    column_dtype,
)

RENAMED = {
    "Kernel": KERNEL,
    "Memcpy": MEMORY[0],
    "Memset": MEMORY[1],
    "Operator": HOST_OPERATOR,
    "Runtime": "cuda_runtime",
}
"""Category names of torch before 1.12."""
KERNELS = (KERNEL, "Kernel")
OPERATORS = (HOST_OPERATOR, "Operator")
COPIES = (*MEMORY, "Memcpy", "Memset")

OF_EVERY_EVENT = ("start_ns", "duration_ns", "correlation", "category", "name", "lane")
MISSING = {
    "sequence": UNKNOWN,
    "forward_thread": 0,
    "num_bytes": UNKNOWN,
    "launch": UNKNOWN,
    "collective": UNKNOWN,
    "flops": np.nan,
    "dtype": UNKNOWN,
    "work": int(Work.MATMUL),
    "read_bytes": UNKNOWN,
    "written_bytes": UNKNOWN,
}
"""Columns of a part of the events, and their value for all others."""
NO_METADATA = TraceCollective()
FIRST_ROWS = 1 << 12


class Column:
    """Values of a column, and room for more. It takes no memory before the first value that is not `missing`."""

    def __init__(self, name: str) -> None:
        self._missing = MISSING.get(name, 0)
        self._values: NDArray[Any] = np.empty(0, dtype=np.int8 if name == "work" else column_dtype(name))
        self._length = 0

    def extend(self, values: NDArray[Any]) -> None:
        """Add a value for each row of a batch."""
        end = self._length + len(values)
        self._make_room(end)
        self._values[self._length : end] = values
        self._length = end

    def extend_some(self, num_rows: int, rows: Ints, values: NDArray[Any]) -> None:
        """Add the values of some rows of a batch, and `missing` for the others."""
        begin, end = self._length, self._length + num_rows
        if len(self._values) or not (values == self._missing).all():
            self._make_room(end)
            self._values[begin:end] = self._missing
            self._values[begin + rows] = values
        self._length = end

    def _make_room(self, length: int) -> None:
        """Room that is not written to takes no memory either."""
        room = len(self._values)
        if length > room:
            wider = np.empty(max(2 * room, length, FIRST_ROWS), dtype=self._values.dtype)
            wider[:room] = self._values
            if not room:
                wider[: self._length] = self._missing
            self._values = wider

    def take(self) -> NDArray[Any]:
        """Return the values, and keep none."""
        values, self._values = self._values, self._values[:0]
        if len(values) or not self._length:
            return values[: self._length]
        return np.broadcast_to(values.dtype.type(self._missing), self._length)


class Columns:
    """Columns of all events added so far."""

    def __init__(self) -> None:
        self.numbers = {name: Numbers() for name in CODES}
        """Values of the columns of codes."""
        self.num_rows = 0
        self.has_shapes = self.has_strides = False
        """See `TraceInfo`."""
        self._columns = {name: Column(name) for name in (*OF_EVERY_EVENT, *MISSING)}

    def add(self, batch: Batch) -> None:
        """Add the events of a batch."""
        self.num_rows += len(batch.start_ns)
        for name in OF_EVERY_EVENT:
            self._columns[name].extend(getattr(batch, name))
        operators, kernels, copies = (
            self.numbers["category"].among(batch.category, each) for each in (OPERATORS, KERNELS, COPIES)
        )
        self.has_shapes = self.has_shapes or len(batch.with_shapes(operators)) > 0
        self.has_strides = self.has_strides or len(batch.with_strides(operators)) > 0
        self._add(batch, operators, {"sequence": batch.sequence(operators)})
        self._add(batch, operators, {"forward_thread": batch.forward_thread(operators)})
        self._add(batch, copies, {"num_bytes": batch.num_bytes(copies)})
        self._add(batch, kernels, {"launch": batch.launch(kernels)})
        self._add_collectives(batch, kernels)
        self._add_flops(batch)
        self._add_bytes(batch)

    def _add(self, batch: Batch, rows: Ints, values: Mapping[str, ArrayLike]) -> None:
        for name, of_rows in values.items():
            self._columns[name].extend_some(len(batch.start_ns), rows, np.asarray(of_rows))

    def _add_collectives(self, batch: Batch, kernels: Ints) -> None:
        """Metadata of communication kernels, and of the operators and annotations around collectives."""
        names = self.numbers["name"]
        found = {
            row: collective(batch.arguments(row))
            for rows in (batch.with_collective(kernels), names.among(batch.name, (OPERATOR,)))
            for row in rows.tolist()
        } | {
            row: sizes(self._name(batch, row), batch.arguments(row))
            for row in names.matching(batch.name, ANNOTATION_OF).tolist()
        }
        stated = {row: self.numbers["collective"][found[row]] for row in sorted(found) if found[row] != NO_METADATA}
        self._add(batch, np.array([*stated], dtype=np.int64), {"collective": [*stated.values()]})

    def _add_flops(self, batch: Batch) -> None:
        """FLOPs, dtype and kind of the work of operators with recorded shapes."""
        rows = batch.with_shapes(self.numbers["name"].among(batch.name, FLOPS))
        found = {row: shape_flops(self._name(batch, row), recorded(batch.arguments(row))) for row in rows.tolist()}
        counts = {row: each for row, each in found.items() if each is not None}
        values: dict[str, ArrayLike] = {
            "flops": [each.flops for each in counts.values()],
            "dtype": self.numbers["dtype"].of([each.dtype for each in counts.values()]),
            "work": [each.work for each in counts.values()],
        }
        self._add(batch, np.array([*counts], dtype=np.int64), values)

    def _add_bytes(self, batch: Batch) -> None:
        """Bytes that operators with recorded strides read and write."""
        rows = batch.with_strides(self.numbers["name"].among(batch.name, BYTES))
        found = {row: shape_bytes(self._name(batch, row), recorded(batch.arguments(row))) for row in rows.tolist()}
        moved = {row: each for row, each in found.items() if each is not None}
        values = {
            "read_bytes": [each[0] for each in moved.values()],
            "written_bytes": [each[1] for each in moved.values()],
        }
        self._add(batch, np.array([*moved], dtype=np.int64), values)

    def _name(self, batch: Batch, row: int) -> str:
        return str(self.numbers["name"].values_in_order[batch.name[row]])

    def _of_gpu(self) -> list[int]:
        """Codes of the categories of what a GPU does."""
        names = self.numbers["category"].values_in_order
        return [code for code, name in enumerate(names) if name in (*KERNELS, *COPIES)]

    def trace(self, info: TraceInfo, *, base_ns: int) -> Trace:
        """Take all events, in order of start. Raises OverflowError for a time beyond 64 bits."""
        columns = {name: column.take() for name, column in self._columns.items()}
        columns["start_ns"] += np.int64(base_ns)
        in_range = columns["start_ns"] <= AFTER_ALL_NS - np.maximum(columns["duration_ns"], 0)
        if not in_range.all():
            columns = {name: column[in_range] for name, column in columns.items()}
            info = replace(info, num_untimed=info.num_untimed + int(np.count_nonzero(~in_range)))
        info = replace(info, num_negative=int(np.count_nonzero(columns["duration_ns"] < 0)))
        np.maximum(columns["duration_ns"], 0, out=columns["duration_ns"])
        _sort(columns)
        columns, num_twice = _once(columns, self._of_gpu())
        info = replace(info, num_twice=num_twice)
        _leave_out(columns, ("flops",), _inside_counted(columns, np.isfinite(columns["flops"])))
        _leave_out(columns, ("read_bytes", "written_bytes"), _inside_counted(columns, columns["read_bytes"] != UNKNOWN))
        values = {name: numbers.values_in_order for name, numbers in self.numbers.items()}
        return Trace(
            info=info,
            names=tuple(map(str, values["name"])),
            categories=tuple(RENAMED.get(category, str(category)) for category in values["category"]),
            lanes=tuple(Lane(process=str(process), thread=str(thread)) for process, thread in values["lane"]),
            launches=tuple(launch.decode(errors="replace") for launch in values["launch"]),
            dtypes=tuple(values["dtype"]),
            collectives=tuple(values["collective"]),
            **columns,
        )


def _once(columns: dict[str, NDArray[Any]], of_gpu: Sequence[int]) -> tuple[dict[str, NDArray[Any]], int]:
    """Leave out the second of two equal events, in a trace whose GPU does something twice at once on one stream.

    Rows are in order of start. Equal events of the host alone are no sign: times of whole us hold several short ones.
    """
    starts = columns["start_ns"]
    alike = starts[1:] == starts[:-1]
    rows = np.flatnonzero(np.append(False, alike) | np.append(alike, False)[: len(starts)])
    is_work = np.isin(columns["category"][rows], of_gpu) & (columns["duration_ns"][rows] > 0)
    if not len(_equal_rows(columns, rows[is_work & (columns["correlation"][rows] > 0)], OF_EVERY_EVENT)):
        return columns, 0
    kept = np.ones(len(starts), dtype=bool)
    kept[_equal_rows(columns, rows, (*OF_EVERY_EVENT, *(name for name in MISSING if name != "flops")))] = False
    return {name: column[kept] for name, column in columns.items()}, int(np.count_nonzero(~kept))


def _equal_rows(columns: Mapping[str, NDArray[Any]], rows: Ints, names: Sequence[str]) -> Ints:
    """Those of the rows that another one before them equals in the columns `names`."""
    keys = [columns[name][rows] for name in names]
    order = np.lexsort(keys) if len(rows) else rows
    equal = np.ones(max(len(rows) - 1, 0), dtype=bool)
    for key in keys:
        equal &= key[order][1:] == key[order][:-1]
    repeated: Ints = np.sort(rows[order][1:][equal])
    return repeated


def _sort(columns: Mapping[str, NDArray[Any]]) -> None:
    """Bring the rows in order of start, in place: the columns are most of what is in memory."""
    starts = columns["start_ns"]
    if (starts[1:] >= starts[:-1]).all():
        return
    order = np.argsort(starts, kind="stable")
    room = np.empty(len(order), dtype=np.int64)
    for column in columns.values():
        if column.strides != (0,):
            in_order = room.view(column.dtype)[: len(order)]
            column[:] = np.take(column, order, out=in_order, mode="clip")


def _leave_out(columns: Mapping[str, NDArray[Any]], names: Sequence[str], rows: Ints) -> None:
    if len(rows):
        for name in names:
            columns[name][rows] = MISSING[name]


def _inside_counted(columns: Mapping[str, NDArray[Any]], counted: Bools) -> Ints:
    """Rows of counted operators that another one on their thread called: they are part of it."""
    rows = np.flatnonzero(counted)
    starts, ends, lanes = (columns[name][rows] for name in ("start_ns", "duration_ns", "lane"))
    ends = starts + ends
    order = np.lexsort((-ends, starts, lanes))
    rows, starts, ends, lanes = rows[order], starts[order], ends[order], lanes[order]
    inside = np.zeros(len(rows), dtype=bool)
    for lane in set(lanes.tolist()):
        at = np.flatnonzero(lanes == lane)
        inside[at[1:]] = starts[at[1:]] < np.maximum.accumulate(ends[at])[:-1]
    return rows[inside]
