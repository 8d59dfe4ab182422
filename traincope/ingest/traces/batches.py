"""Kept events of a piece of a trace's text, column by column, whichever decoder found them."""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from traincope.arrays import Codes, Ints
from traincope.ingest.traces.collectives import whole
from traincope.ingest.traces.decimals import to_ns
from traincope.ingest.traces.events import ABSENT, Arguments, Complete, one_by_one, scan
from traincope.store.side_tables.traces import HOST_OPERATOR, KERNEL, PYTHON_FUNCTION, UNKNOWN

SKIPPED = frozenset({PYTHON_FUNCTION, "Trace", "overhead", "", None})
"""Stacks, the trace window as a whole, and the profiler's own work: not work of the training."""
STALLS = re.compile(r"<built-in function collect>|(?:.*/)?torch/_dynamo/convert_frame\.py\(\d+\): _compile")
"""Python calls that stop the training, and are kept: garbage collection and compilation."""
BY_PROCESS = {"CPU functions": HOST_OPERATOR, "CUDA functions": KERNEL}
"""Categories of events that have none, by their process: torch's profiler before Kineto."""
NOTHING = Arguments()
NO_VALUES = (ABSENT, msgspec.Raw(b"[]"))


class Numbers(dict[Any, int]):
    """Values numbered in the order in which they come."""

    def __init__(self) -> None:
        super().__init__()
        self.values_in_order: list[Any] = []
        self._matches: dict[re.Pattern[str], list[bool]] = {}

    def __missing__(self, value: Hashable) -> int:
        number = self[value] = len(self)
        self.values_in_order.append(value)
        return number

    def of(self, values: Sequence[Hashable]) -> Codes:
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32, count=len(values))

    def among(self, codes: Codes, values: Iterable[Hashable]) -> Ints:
        """Rows whose code is that of one of these values."""
        wanted = np.zeros(len(self), dtype=bool)
        wanted[[self[value] for value in values if value in self]] = True
        return np.flatnonzero(wanted[codes])

    def matching(self, codes: Codes, pattern: re.Pattern[str]) -> Ints:
        """Rows whose code is that of a text that matches as a whole. Each value is matched once."""
        matches = self._matches.setdefault(pattern, [])
        new = self.values_in_order[len(matches) :]
        matches.extend(isinstance(value, str) and pattern.fullmatch(value) is not None for value in new)
        return np.flatnonzero(np.array(matches, dtype=bool)[codes])


class Batch(Protocol):
    """Kept events. `rows` are positions in the batch."""

    start_ns: Ints
    duration_ns: Ints
    correlation: Ints
    category: Codes
    name: Codes
    lane: Codes

    def sequence(self, rows: Ints) -> Ints: ...

    def forward_thread(self, rows: Ints) -> Ints: ...

    def num_bytes(self, rows: Ints) -> Ints: ...

    def launch(self, rows: Ints) -> Codes: ...

    def with_shapes(self, rows: Ints) -> Ints:
        """Rows whose arguments have recorded shapes."""

    def with_strides(self, rows: Ints) -> Ints:
        """Rows whose arguments have recorded strides."""

    def with_collective(self, rows: Ints) -> Ints:
        """Rows that state the name of a collective."""

    def arguments(self, row: int) -> Arguments: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Result of decoding a piece of text."""

    batch: Batch | None
    """None without an event that is kept."""
    num_read: int
    """Number of events of all kinds."""
    num_untimed: int
    """Events that are left out because of an invalid time."""
    rest: bytes
    """Text after the last decoded event."""


class Decoder(Protocol):
    """Decode text that begins between two events. The last event may remain until more of the text is read."""

    piece: int
    """Bytes of text for which it is fastest."""

    def decode(self, text: bytes, *, last: bool = False) -> Decoded:
        """`last`: decode also the last event, and repair what can be repaired."""


class PlainDecoder:
    """Decode by msgspec."""

    piece = 1 << 18
    """Larger pieces are slower: their events leave the processor's cache."""

    def __init__(self, numbers: Mapping[str, Numbers]) -> None:
        self._numbers = numbers

    def decode(self, text: bytes, *, last: bool = False) -> Decoded:
        found = one_by_one(text) if last else scan(text)
        kept = [each for each in found.events if each.cat not in SKIPPED or _is_stall(each) or _is_categorised(each)]
        try:
            batch, num_untimed = EventBatch(kept, self._numbers), 0
        except (ValueError, OverflowError):
            timed = [event for event in kept if _has_times(event)]
            batch, num_untimed = EventBatch(timed, self._numbers), len(kept) - len(timed)
        return Decoded(
            batch=batch if len(batch.start_ns) else None,
            num_read=found.num_read,
            num_untimed=num_untimed,
            rest=found.rest,
        )


class EventBatch:
    """Events that msgspec decoded."""

    def __init__(self, events: Sequence[Complete], numbers: Mapping[str, Numbers]) -> None:
        """Raises ValueError or OverflowError for an invalid time."""
        self.start_ns, self.duration_ns = to_ns([event.ts for event in events]), to_ns([event.dur for event in events])
        self._arguments = [event.args if type(event.args) is Arguments else NOTHING for event in events]
        self._launches = numbers["launch"]
        self.category = numbers["category"].of([event.cat for event in events])
        self.name = numbers["name"].of([event.name for event in events])
        self.lane = numbers["lane"].of([(event.pid, event.tid) for event in events])
        self.correlation = _integers([each.correlation for each in self._arguments], missing=0)

    def arguments(self, row: int) -> Arguments:
        return self._arguments[row]

    def sequence(self, rows: Ints) -> Ints:
        return _integers([each.sequence for each in self._of(rows)], missing=UNKNOWN)

    def forward_thread(self, rows: Ints) -> Ints:
        return _integers([each.forward_thread for each in self._of(rows)], missing=0)

    def num_bytes(self, rows: Ints) -> Ints:
        return _integers([each.num_bytes for each in self._of(rows)], missing=UNKNOWN)

    def launch(self, rows: Ints) -> Codes:
        known = [each.grid is not ABSENT and each.block is not ABSENT for each in self._of(rows)]
        codes = np.full(len(rows), UNKNOWN, dtype=np.int32)
        texts = [b'"grid": %b, "block": %b' % (each.grid, each.block) for each in self._of(rows[known])]
        codes[known] = self._launches.of(texts)
        return codes

    def with_shapes(self, rows: Ints) -> Ints:
        return rows[[each.dims not in NO_VALUES for each in self._of(rows)]]

    def with_strides(self, rows: Ints) -> Ints:
        return rows[[each.strides not in NO_VALUES for each in self._of(rows)]]

    def with_collective(self, rows: Ints) -> Ints:
        return rows[[each.collective is not None for each in self._of(rows)]]

    def _of(self, rows: Ints) -> list[Arguments]:
        return [self._arguments[row] for row in rows.tolist()]


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
