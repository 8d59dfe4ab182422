"""Columns of the events that are kept from a trace, growing piece by piece."""

import itertools
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Codes, Ints
from traincope.events import Work
from traincope.ingest.traces.collectives import ANNOTATION_OF, OPERATOR, collective, sizes, whole
from traincope.ingest.traces.decimals import to_ns
from traincope.ingest.traces.events import ABSENT, Arguments, Complete
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
    NUMBERS,
    PYTHON_FUNCTION,
    UNKNOWN,
    Lane,
    Trace,
    TraceCollective,
    TraceInfo,
    column_dtype,
)

SKIPPED = frozenset({PYTHON_FUNCTION, "Trace", "overhead", "", None})
"""Stacks, the trace window as a whole, and the profiler's own work: not work of the training."""
STALLS = re.compile(r"<built-in function collect>|(?:.*/)?torch/_dynamo/convert_frame\.py\(\d+\): _compile")
"""Python calls that stop the training, and are kept: garbage collection and compilation."""
RENAMED = {
    "Kernel": KERNEL,
    "Memcpy": MEMORY[0],
    "Memset": MEMORY[1],
    "Operator": HOST_OPERATOR,
    "Runtime": "cuda_runtime",
}
"""Category names of torch before 1.12."""
BY_PROCESS = {"CPU functions": HOST_OPERATOR, "CUDA functions": KERNEL}
"""Categories of events that have none, by their process: torch's profiler before Kineto."""
KERNELS = (KERNEL, "Kernel")
OPERATORS = (HOST_OPERATOR, "Operator")
COPIES = (*MEMORY, "Memcpy", "Memset")
NOTHING = Arguments()
NO_VALUES = (ABSENT, msgspec.Raw(b"[]"))


class Numbers(dict[Any, int]):
    """Values numbered in the order in which they come."""

    def __missing__(self, value: Hashable) -> int:
        number = self[value] = len(self)
        return number

    def __init__(self) -> None:
        super().__init__()
        self._matches: dict[re.Pattern[str], list[bool]] = {}

    def of(self, values: Sequence[Hashable]) -> Codes:
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32, count=len(values))

    def among(self, codes: Codes, values: Iterable[Hashable]) -> list[int]:
        """Rows whose code is that of one of these values."""
        wanted = np.zeros(len(self), dtype=bool)
        wanted[[self[value] for value in values if value in self]] = True
        rows: list[int] = np.flatnonzero(wanted[codes]).tolist()
        return rows

    def matching(self, codes: Codes, pattern: re.Pattern[str]) -> list[int]:
        """Rows whose code is that of a text that matches as a whole. Each value is matched once."""
        matches = self._matches.setdefault(pattern, [])
        new = itertools.islice(self, len(matches), None)
        matches.extend(isinstance(value, str) and pattern.fullmatch(value) is not None for value in new)
        rows: list[int] = np.flatnonzero(np.array(matches, dtype=bool)[codes]).tolist()
        return rows


class Columns:
    """Columns of all events added so far."""

    def __init__(self) -> None:
        self._numbers = {name: Numbers() for name in CODES}
        self._pieces: list[dict[str, NDArray[Any]]] = []
        self.num_untimed = 0
        self.has_shapes = self.has_strides = False
        """See `TraceInfo`."""

    @property
    def num_timed(self) -> int:
        """Return the number of events that were kept."""
        return sum(len(piece["name"]) for piece in self._pieces)

    def add(self, events: Iterable[Complete]) -> None:
        """Add a piece."""
        kept = [event for event in events if event.cat not in SKIPPED or _is_stall(event) or _is_categorised(event)]
        try:
            self._add(kept)
        except (ValueError, OverflowError):
            timed = [event for event in kept if _has_times(event)]
            self.num_untimed += len(kept) - len(timed)
            self._add(timed)

    def _add(self, kept: Sequence[Complete]) -> None:
        """Add events of the training. Raises ValueError or OverflowError for an invalid time, and adds none then."""
        if not kept:
            return
        start_ns, duration_ns = to_ns([event.ts for event in kept]), to_ns([event.dur for event in kept])
        arguments = [event.args if type(event.args) is Arguments else NOTHING for event in kept]
        category = self._numbers["category"].of([event.cat for event in kept])
        name = self._numbers["name"].of([event.name for event in kept])
        piece: dict[str, NDArray[Any]] = {
            "start_ns": start_ns,
            "duration_ns": duration_ns,
            "category": category,
            "name": name,
            "lane": self._numbers["lane"].of([(event.pid, event.tid) for event in kept]),
            "correlation": _integers([each.correlation for each in arguments], missing=0),
            "sequence": np.full(len(kept), UNKNOWN),
            "forward_thread": np.zeros(len(kept), dtype=np.int64),
            "num_bytes": np.full(len(kept), UNKNOWN),
            "launch": np.full(len(kept), UNKNOWN, dtype=np.int32),
            "collective": np.full(len(kept), UNKNOWN, dtype=np.int32),
        }
        operators, kernels, copies = (
            self._numbers["category"].among(category, each) for each in (OPERATORS, KERNELS, COPIES)
        )
        self.has_shapes = self.has_shapes or any(arguments[row].dims not in NO_VALUES for row in operators)
        self.has_strides = self.has_strides or any(arguments[row].strides not in NO_VALUES for row in operators)
        piece["sequence"][operators] = _integers([arguments[row].sequence for row in operators], missing=UNKNOWN)
        piece["forward_thread"][operators] = _integers([arguments[row].forward_thread for row in operators], missing=0)
        piece["num_bytes"][copies] = _integers([arguments[row].num_bytes for row in copies], missing=UNKNOWN)
        piece["launch"][kernels] = [self._launch(arguments[row]) for row in kernels]
        described = [row for row in kernels if arguments[row].collective is not None]
        described += self._numbers["name"].among(name, [OPERATOR])
        piece["collective"][described] = [self._collective(collective(arguments[row])) for row in described]
        around = self._numbers["name"].matching(name, ANNOTATION_OF)
        piece["collective"][around] = [self._collective(sizes(str(kept[row].name), arguments[row])) for row in around]
        self._pieces.append(piece | self._flops(name, kept, arguments) | self._bytes(name, kept, arguments))

    def _launch(self, arguments: Arguments) -> int:
        grid, block = arguments.grid, arguments.block
        known = grid is not ABSENT and block is not ABSENT
        return self._numbers["launch"][b'"grid": %b, "block": %b' % (grid, block)] if known else UNKNOWN

    def _collective(self, metadata: TraceCollective) -> int:
        return UNKNOWN if metadata == TraceCollective() else self._numbers["collective"][metadata]

    def _flops(
        self, name: Codes, events: Sequence[Complete], arguments: Sequence[Arguments]
    ) -> dict[str, NDArray[Any]]:
        """FLOPs, dtype and kind of the work of operators with recorded shapes."""
        flops, work = np.full(len(name), np.nan), np.full(len(name), Work.MATMUL)
        dtype = np.full(len(name), UNKNOWN, dtype=np.int32)
        for row in self._numbers["name"].among(name, FLOPS):
            count = shape_flops(str(events[row].name), recorded(arguments[row]))
            if count is not None:
                flops[row], dtype[row], work[row] = count.flops, self._numbers["dtype"][count.dtype], count.work
        return {"flops": flops, "dtype": dtype, "work": work}

    def _bytes(
        self, name: Codes, events: Sequence[Complete], arguments: Sequence[Arguments]
    ) -> dict[str, NDArray[Any]]:
        """Bytes that operators with recorded strides read and write."""
        read, written = np.full(len(name), UNKNOWN), np.full(len(name), UNKNOWN)
        for row in self._numbers["name"].among(name, BYTES):
            if arguments[row].strides is not ABSENT:
                traffic = shape_bytes(str(events[row].name), recorded(arguments[row]))
                if traffic is not None:
                    read[row], written[row] = traffic
        return {"read_bytes": read, "written_bytes": written}

    def trace(self, info: TraceInfo, *, base_ns: int) -> Trace:
        """All events in order of start. Raises OverflowError for a time beyond 64 bits."""
        joined = {name: self._joined(name) for name in (*CODES, *NUMBERS, "start_ns")}
        joined["start_ns"] = joined["start_ns"] + np.int64(base_ns)
        info = replace(info, num_negative=int(np.count_nonzero(joined["duration_ns"] < 0)))
        joined["duration_ns"] = np.maximum(joined["duration_ns"], 0)
        order = np.argsort(joined["start_ns"], kind="stable")
        joined["flops"][_inside_counted(joined, np.isfinite(joined["flops"]))] = np.nan
        inside = _inside_counted(joined, joined["read_bytes"] != UNKNOWN)
        joined["read_bytes"][inside] = joined["written_bytes"][inside] = UNKNOWN
        return Trace(
            info=info,
            names=tuple(map(str, self._numbers["name"])),
            categories=tuple(RENAMED.get(category, str(category)) for category in self._numbers["category"]),
            lanes=tuple(Lane(process=str(process), thread=str(thread)) for process, thread in self._numbers["lane"]),
            launches=tuple(launch.decode(errors="replace") for launch in self._numbers["launch"]),
            dtypes=tuple(self._numbers["dtype"]),
            collectives=tuple(self._numbers["collective"]),
            **{name: column[order] for name, column in joined.items()},
        )

    def _joined(self, name: str) -> NDArray[Any]:
        """Join the pieces of a column and release each one: together they are as large as the trace."""
        empty = np.empty(0, dtype=column_dtype(name))
        return np.concatenate([empty, *(piece.pop(name) for piece in self._pieces)])


def _inside_counted(columns: Mapping[str, NDArray[Any]], counted: Bools) -> Ints:
    """Rows of counted operators that another one on their thread called: they are part of it."""
    rows = np.flatnonzero(counted)
    starts, ends, lanes = (columns[name][rows] for name in ("start_ns", "duration_ns", "lane"))
    ends = starts + ends
    order = np.lexsort((-ends, starts, lanes))
    rows, starts, ends, lanes = rows[order], starts[order], ends[order], lanes[order]
    inside = np.zeros(len(rows), dtype=bool)
    for lane in np.unique(lanes).tolist():
        at = np.flatnonzero(lanes == lane)
        inside[at[1:]] = starts[at[1:]] < np.maximum.accumulate(ends[at])[:-1]
    return rows[inside]


def _is_stall(event: Complete) -> bool:
    return event.cat == PYTHON_FUNCTION and STALLS.fullmatch(str(event.name)) is not None


def _is_categorised(event: Complete) -> bool:
    """Return whether an event without a category got one by its process."""
    event.cat = event.cat or BY_PROCESS.get(str(event.pid))
    return event.cat in (HOST_OPERATOR, KERNEL)


def _has_times(event: Complete) -> bool:
    try:
        to_ns((event.ts, event.dur))
    except (ValueError, OverflowError):
        return False
    return True


def _integers(values: list[Any], *, missing: int) -> Ints:
    """A column of whole numbers from 0 on; `missing` for anything else."""
    try:
        column = np.array(values, dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        column = np.array([missing if (number := whole(value)) is None else number for value in values], dtype=np.int64)
    return np.maximum(column, missing)
