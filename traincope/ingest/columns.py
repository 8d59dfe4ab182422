"""Columns of the events that are kept from a trace, growing piece by piece."""

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Codes, Ints
from traincope.ingest.collectives import NAME, OPERATOR, collective
from traincope.ingest.decimals import to_ns
from traincope.ingest.events import Event
from traincope.ingest.matmul_flops import FACTORS, product
from traincope.store.lines import parse
from traincope.store.traces import (
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

SKIPPED = frozenset({"Trace", "overhead", ""})
"""The trace window as a whole, and the profiler's own work: not work of the training."""
STALLS = re.compile(r"<built-in function collect>|(?:.*/)?torch/_dynamo/convert_frame\.py\(\d+\): _compile")
"""Python calls that stop the training: garbage collection and compilation. The other calls are stacks."""
RENAMED = {
    "Kernel": KERNEL,
    "Memcpy": MEMORY[0],
    "Memset": MEMORY[1],
    "Operator": HOST_OPERATOR,
    "Runtime": "cuda_runtime",
}
"""Category names of torch before 1.12."""
KERNELS = frozenset({KERNEL, "Kernel"})
COPIES = frozenset({*MEMORY, "Memcpy", "Memset"})
OPERATORS = frozenset({HOST_OPERATOR, "Operator"})
CORRELATED = frozenset({*KERNELS, *COPIES, "cuda_runtime", "cuda_driver", "Runtime"})

CORRELATION = re.compile(r'"correlation": "?([0-9]{1,18})\b')
SEQUENCE = re.compile(r'"Sequence number": "?([0-9]{1,18})\b')
FORWARD_THREAD = re.compile(r'"Fwd thread id": "?([0-9]{1,18})\b')
NUM_BYTES = re.compile(r'"bytes": "?([0-9]{1,18})\b')
LAUNCH = re.compile(r'("grid": \[[^\]]*\],\s*"block": \[[^\]]*\])')

Rows = NDArray[np.intp]


class Numbers(dict[Any, int]):
    """Values numbered in the order in which they come."""

    def __missing__(self, value: Hashable) -> int:
        number = self[value] = len(self)
        return number

    def of(self, values: Iterable[Hashable]) -> Codes:
        return np.array(list(map(self.__getitem__, values)), dtype=np.int32)

    def among(self, codes: Codes, values: Iterable[Hashable]) -> Rows:
        """Rows whose code is that of one of these values."""
        return np.flatnonzero(np.isin(codes, [self[value] for value in values if value in self]))


class Columns:
    """Columns of all events added so far."""

    def __init__(self) -> None:
        self._numbers = {name: Numbers() for name in CODES}
        self._pieces: list[dict[str, NDArray[Any]]] = []

    def add(self, events: Iterable[Event]) -> None:
        """Add a piece. Raises ValueError or OverflowError for an invalid time."""
        kept = [event for event in events if _is_kept(event)]
        if not kept:
            return
        categories, names, processes, threads, starts, durations, arguments = zip(*kept, strict=True)
        category = self._numbers["category"].of(categories)
        self._pieces.append(
            {
                "start_ns": to_ns(starts),
                "duration_ns": to_ns(durations),
                "category": category,
                "name": self._numbers["name"].of(names),
                "lane": self._numbers["lane"].of(zip(processes, threads, strict=True)),
                "correlation": self._integers(CORRELATION, category, arguments, of=CORRELATED, missing=0),
                "sequence": self._integers(SEQUENCE, category, arguments, of=OPERATORS, missing=UNKNOWN),
                "forward_thread": self._integers(FORWARD_THREAD, category, arguments, of=OPERATORS, missing=0),
                "num_bytes": self._integers(NUM_BYTES, category, arguments, of=COPIES, missing=UNKNOWN),
                "launch": self._launches(category, arguments),
                "collective": self._collectives(category, names, arguments),
                **self._products(names, arguments),
            }
        )

    def _integers(
        self, pattern: re.Pattern[str], category: Codes, arguments: Sequence[str], *, of: frozenset[str], missing: int
    ) -> Ints:
        """Whole numbers in the arguments of events of some categories."""
        column = np.full(len(arguments), missing, dtype=np.int64)
        rows = self._numbers["category"].among(category, of)
        column[rows] = np.array(_each(pattern, arguments, rows, missing=str(missing)), dtype=np.int64)
        return column

    def _launches(self, category: Codes, arguments: Sequence[str]) -> Codes:
        launch = np.full(len(arguments), UNKNOWN, dtype=np.int32)
        rows = self._numbers["category"].among(category, KERNELS)
        launches = _each(LAUNCH, arguments, rows, missing="")
        launch[rows] = [self._numbers["launch"][text] if text else UNKNOWN for text in launches]
        return launch

    def _collectives(self, category: Codes, names: Sequence[str], arguments: Sequence[str]) -> Codes:
        codes = np.full(len(arguments), UNKNOWN, dtype=np.int32)
        kernels = self._numbers["category"].among(category, KERNELS).tolist()
        rows = [row for row in kernels if NAME in arguments[row]]
        for row in (*rows, *(row for row, name in enumerate(names) if name == OPERATOR)):
            metadata = collective(parse(f"{{{arguments[row]}}}") or {})
            if metadata != TraceCollective():
                codes[row] = self._numbers["collective"][metadata]
        return codes

    def _products(self, names: Sequence[str], arguments: Sequence[str]) -> dict[str, NDArray[Any]]:
        """FLOPs and dtype of products with recorded shapes."""
        flops, dtype = np.full(len(names), np.nan), np.full(len(names), UNKNOWN, dtype=np.int32)
        for at in (at for at, name in enumerate(names) if name in FACTORS):
            result = product(names[at], arguments[at])
            if result is not None:
                flops[at], dtype[at] = result.flops, self._numbers["dtype"][result.dtype]
        return {"flops": flops, "dtype": dtype}

    def trace(self, info: TraceInfo, *, base_ns: int) -> Trace:
        """All events in order of start. Raises OverflowError for a time beyond 64 bits."""
        joined = {name: self._joined(name) for name in (*CODES, *NUMBERS, "start_ns")}
        joined["start_ns"] = joined["start_ns"] + np.int64(base_ns)
        joined["duration_ns"] = np.maximum(joined["duration_ns"], 0)  # Kineto has written negative ones
        order = np.argsort(joined["start_ns"], kind="stable")
        lanes = ((process.strip('"'), thread.strip('"')) for process, thread in self._numbers["lane"])
        return Trace(
            info=info,
            names=tuple(self._numbers["name"]),
            categories=tuple(RENAMED.get(category, category) for category in self._numbers["category"]),
            lanes=tuple(Lane(process=process, thread=thread) for process, thread in lanes),
            launches=tuple(self._numbers["launch"]),
            dtypes=tuple(self._numbers["dtype"]),
            collectives=tuple(self._numbers["collective"]),
            **{name: column[order] for name, column in joined.items()},
        )

    def _joined(self, name: str) -> NDArray[Any]:
        """Join the pieces of a column and release each one: together they are as large as the trace."""
        empty = np.empty(0, dtype=column_dtype(name))
        return np.concatenate([empty, *(piece.pop(name) for piece in self._pieces)])


def _is_kept(event: Event) -> bool:
    category, name, *_ = event
    return category not in SKIPPED and (category != PYTHON_FUNCTION or STALLS.fullmatch(name) is not None)


def _each(pattern: re.Pattern[str], arguments: Sequence[str], rows: Rows, *, missing: str) -> list[str]:
    """First match of the pattern in the arguments of each row.

    One search over all rows is enough if each has one match.
    """
    chosen = [arguments[row] for row in rows.tolist()]
    matches: list[str] = pattern.findall("\n".join(chosen))
    if len(matches) == len(chosen):
        return matches
    return [match.group(1) if (match := pattern.search(text)) else missing for text in chosen]
