"""Events side by side: what of a trace is kept, as columns that grow piece by piece."""

import re
from collections.abc import Hashable, Iterable
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
LAUNCH = re.compile(r'"grid": (\[[^\]]*\]),\s*"block": (\[[^\]]*\])')


class Columns:
    """What was added so far. Strings are numbered in the order they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[Any, int]] = {name: {} for name in CODES}
        self._pieces: list[dict[str, NDArray[Any]]] = []

    def add(self, events: Iterable[Event]) -> None:
        """Raises ValueError or OverflowError for a time that is none."""
        kept = [event for event in events if event[0] not in SKIPPED]
        if not kept:
            return
        categories, names, processes, threads, starts, durations, _ = zip(*kept, strict=True)
        piece: dict[str, NDArray[Any]] = {
            "start_ns": to_ns(starts),
            "duration_ns": to_ns(durations),
            "category": self._codes("category", categories),
            "name": self._codes("name", names),
            "lane": self._codes("lane", zip(processes, threads, strict=True)),
        }
        self._pieces.append(piece | self._arguments(kept))

    def _arguments(self, events: list[Event]) -> dict[str, NDArray[Any]]:
        """What is told in the arguments of those events that tell it."""
        count = len(events)
        launch, dtype = (np.full(count, UNKNOWN, dtype=np.int32) for _ in range(2))
        correlation, flops = np.zeros(count, dtype=np.int64), np.full(count, np.nan)
        for at, (category, name, *_, arguments) in enumerate(events):
            if category in CORRELATED:
                told = CORRELATION.search(arguments)
                correlation[at] = int(told.group(1)) if told else 0
                launch[at] = self._launch(arguments) if category in KERNELS else UNKNOWN
            elif name in FACTORS and (found := product(name, arguments)) is not None:
                flops[at], dtype[at] = found.flops, self._number("dtype", found.dtype)
        return {"launch": launch, "correlation": correlation, "flops": flops, "dtype": dtype}

    def _launch(self, arguments: str) -> int:
        told = LAUNCH.search(arguments)
        if told is None:
            return UNKNOWN
        return self._number("launch", " ".join(told.groups()))

    def _codes(self, column: str, values: Iterable[Hashable]) -> Codes:
        numbers = self._numbers[column]
        return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int32)

    def _number(self, column: str, value: str) -> int:
        numbers = self._numbers[column]
        return numbers.setdefault(value, len(numbers))

    def trace(self, info: TraceInfo, *, base_ns: int) -> Trace:
        """All of them in order of start. Raises OverflowError for a time beyond 64 bits."""
        joined = {name: self._joined(name) for name in (*CODES, *NUMBERS, "start_ns")}
        joined["start_ns"] = joined["start_ns"] + np.int64(base_ns)
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
