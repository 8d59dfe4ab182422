"""Kernel traces written by hand: rows with times in ns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from traincope.events import Work
from traincope.store.side_tables.traces import UNKNOWN, Lane, Trace, TraceCollective, TraceGroup, TraceInfo

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One event. A GPU's lane is (number, stream), a host's (process, thread)."""

    category: str
    name: str
    start_ns: int
    end_ns: int
    process: str
    thread: str
    launch: str | None = None
    correlation: int = 0
    flops: float = np.nan
    dtype: str | None = None
    work: Work = Work.MATMUL
    read_bytes: int = UNKNOWN
    written_bytes: int = UNKNOWN
    sequence: int = UNKNOWN
    forward_thread: int = 0
    num_bytes: int = UNKNOWN
    collective: TraceCollective | None = None


def kernel(
    name: str, start_ns: int, end_ns: int, *, gpu: str = "0", stream: str = "7", launch: str | None = None, of: int = 0
) -> Row:
    """Build a kernel. `of` is the correlation of its launch."""
    return Row(
        category="kernel",
        name=name,
        start_ns=start_ns,
        end_ns=end_ns,
        process=gpu,
        thread=stream,
        launch=launch,
        correlation=of,
    )


def copy(start_ns: int, end_ns: int, *, gpu: str = "0") -> Row:
    return Row(category="gpu_memcpy", name="Memcpy HtoD", start_ns=start_ns, end_ns=end_ns, process=gpu, thread="20")


def launch(at_ns: int, correlation: int, *, thread: str = "1") -> Row:
    """Build a launch of 1 ns."""
    return Row(
        category="cuda_runtime",
        name="cudaLaunchKernel",
        start_ns=at_ns,
        end_ns=at_ns + 1,
        process="host",
        thread=thread,
        correlation=correlation,
    )


def operator(
    name: str,
    start_ns: int,
    end_ns: int,
    *,
    thread: str = "1",
    flops: float = np.nan,
    dtype: str | None = None,
    work: Work = Work.MATMUL,
    moved: tuple[int, int] = (UNKNOWN, UNKNOWN),
) -> Row:
    """Build an operator. `moved`: bytes that it reads, and that it writes."""
    read_bytes, written_bytes = moved
    return Row(
        category="cpu_op",
        name=name,
        start_ns=start_ns,
        end_ns=end_ns,
        process="host",
        thread=thread,
        flops=flops,
        dtype=dtype,
        work=work,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
    )


def trace(
    *rows: Row,
    rank: int = 0,
    step: int | None = None,
    lost: str | None = None,
    groups: tuple[TraceGroup, ...] = (),
) -> Trace:
    """Build a trace from rows, sorted by start."""
    ordered = sorted(rows, key=lambda row: row.start_ns)
    lanes = [(row.process, row.thread) for row in ordered]
    return Trace(
        info=TraceInfo(
            source="hand-made.json",
            rank=rank,
            step=step,
            num_read=len(rows),
            lost=lost,
            has_shapes=any(math.isfinite(row.flops) for row in rows),
            has_strides=any(row.read_bytes != UNKNOWN for row in rows),
            groups=groups,
        ),
        names=_distinct([row.name for row in ordered]),
        categories=_distinct([row.category for row in ordered]),
        lanes=tuple(Lane(process=process, thread=thread) for process, thread in dict.fromkeys(lanes)),
        launches=_distinct([row.launch for row in ordered if row.launch is not None]),
        dtypes=_distinct([row.dtype for row in ordered if row.dtype is not None]),
        collectives=_distinct([row.collective for row in ordered if row.collective is not None]),
        start_ns=np.array([row.start_ns for row in ordered], dtype=np.int64),
        duration_ns=np.array([row.end_ns - row.start_ns for row in ordered], dtype=np.int64),
        name=_codes([row.name for row in ordered]),
        category=_codes([row.category for row in ordered]),
        lane=_codes(lanes),
        launch=_codes([row.launch for row in ordered]),
        correlation=np.array([row.correlation for row in ordered], dtype=np.int64),
        flops=np.array([row.flops for row in ordered], dtype=np.float64),
        dtype=_codes([row.dtype for row in ordered]),
        work=np.array([row.work for row in ordered], dtype=np.int64),
        read_bytes=np.array([row.read_bytes for row in ordered], dtype=np.int64),
        written_bytes=np.array([row.written_bytes for row in ordered], dtype=np.int64),
        sequence=np.array([row.sequence for row in ordered], dtype=np.int64),
        forward_thread=np.array([row.forward_thread for row in ordered], dtype=np.int64),
        num_bytes=np.array([row.num_bytes for row in ordered], dtype=np.int64),
        collective=_codes([row.collective for row in ordered]),
    )


def _distinct(values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(values))


def _codes(values: Sequence[object]) -> np.ndarray:
    """Number the values in order of first appearance, -1 for None."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(v for v in values if v is not None))}
    return np.array([-1 if value is None else numbers[value] for value in values], dtype=np.int32)
