"""Events side by side: what of a trace is kept, as columns that grow piece by piece."""

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.ingest.decimals import to_ns
from traincope.ingest.events import Event
from traincope.ingest.products import FACTORS, product
from traincope.store.traces import (
    CODES,
    HOST_OPERATOR,
    KERNEL,
    MEMORY,
    NUMBERS,
    UNKNOWN,
    Codes,
    Lane,
    Trace,
    TraceInfo,
)

SKIPPED = frozenset({"python_function", "Trace", "overhead", ""})
"""Stacks, the window as a whole, the profiler's own work: nothing that the training did beside its other events."""
RENAMED = {
    "Kernel": KERNEL,
    "Memcpy": MEMORY[0],
    "Memset": MEMORY[1],
    "Operator": HOST_OPERATOR,
    "Runtime": "cuda_runtime",
}
"""Categories as torch before 1.12 called them."""
KERNELS = frozenset({KERNEL, "Kernel"})
CORRELATED = frozenset({*KERNELS, *MEMORY, "Memcpy", "Memset", "cuda_runtime", "cuda_driver", "Runtime"})

CORRELATION = re.compile(r'"correlation": "?([0-9]{1,18})\b')
LAUNCH = re.compile(r'("grid": \[[^\]]*\],\s*"block": \[[^\]]*\])')

Rows = NDArray[np.intp]


class Numbers(dict[Any, int]):
    """Values by number, in the order they come."""

    def __missing__(self, value: Hashable) -> int:
        number = self[value] = len(self)
        return number

    def of(self, values: Iterable[Hashable]) -> Codes:
        return np.array(list(map(self.__getitem__, values)), dtype=np.int32)

    def among(self, codes: Codes, wanted: Iterable[Hashable]) -> Rows:
        """Where the codes are those of any of these values."""
        return np.flatnonzero(np.isin(codes, [self[value] for value in wanted if value in self]))


class Columns:
    """What was added so far."""

    def __init__(self) -> None:
        self._numbers = {name: Numbers() for name in CODES}
        self._pieces: list[dict[str, NDArray[Any]]] = []

    def add(self, events: Iterable[Event]) -> None:
        """Raises ValueError or OverflowError for a time that is none."""
        kept = [event for event in events if event[0] not in SKIPPED]
        if not kept:
            return
        categories, names, processes, threads, starts, durations, arguments = zip(*kept, strict=True)
        piece: dict[str, NDArray[Any]] = {
            "start_ns": to_ns(starts),
            "duration_ns": to_ns(durations),
            "category": self._numbers["category"].of(categories),
            "name": self._numbers["name"].of(names),
            "lane": self._numbers["lane"].of(zip(processes, threads, strict=True)),
        }
        self._pieces.append(piece | self._launches(piece["category"], arguments) | self._products(names, arguments))

    def _launches(self, category: Codes, arguments: Sequence[str]) -> dict[str, NDArray[Any]]:
        """What launched what, and how large."""
        known = self._numbers["category"]
        correlation = np.zeros(len(arguments), dtype=np.int64)
        rows = known.among(category, CORRELATED)
        correlation[rows] = np.array(_each(CORRELATION, arguments, rows, missing="0"), dtype=np.int64)
        launch = np.full(len(arguments), UNKNOWN, dtype=np.int32)
        rows = known.among(category, KERNELS)
        told = _each(LAUNCH, arguments, rows, missing="")
        launch[rows] = [self._numbers["launch"][one] if one else UNKNOWN for one in told]
        return {"correlation": correlation, "launch": launch}

    def _products(self, names: Sequence[str], arguments: Sequence[str]) -> dict[str, NDArray[Any]]:
        """What was multiplied, where shapes were recorded."""
        flops, dtype = np.full(len(names), np.nan), np.full(len(names), UNKNOWN, dtype=np.int32)
        for at in (at for at, name in enumerate(names) if name in FACTORS):
            found = product(names[at], arguments[at])
            if found is not None:
                flops[at], dtype[at] = found.flops, self._numbers["dtype"][found.dtype]
        return {"flops": flops, "dtype": dtype}

    def trace(self, info: TraceInfo, *, base_ns: int) -> Trace:
        """All of them in order of start. Raises OverflowError for a time beyond 64 bits."""
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
            **{name: column[order] for name, column in joined.items()},
        )

    def _joined(self, name: str) -> NDArray[Any]:
        """Pieces are given up as they are joined: together they are as large as the trace."""
        empty = np.empty(0, dtype=np.float64 if name == "flops" else np.int32 if name in CODES else np.int64)
        return np.concatenate([empty, *(piece.pop(name) for piece in self._pieces)])


def _each(pattern: re.Pattern[str], arguments: Sequence[str], rows: Rows, *, missing: str) -> list[str]:
    """What the pattern finds in the arguments of each row: at once where all have it once, as is the rule."""
    chosen = [arguments[row] for row in rows.tolist()]
    found: list[str] = pattern.findall("\n".join(chosen))
    if len(found) == len(chosen):
        return found
    return [told.group(1) if (told := pattern.search(one)) else missing for one in chosen]
