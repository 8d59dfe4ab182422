"""Ledger rows: the ledger of one step on one rank, one JSON line each, written by the node's agent.

    [step, start, wall, own, anomalous, {"forward": 41000000, "exposed_wait[fsdp]": 200000, ...}]

About 200 bytes; all times in ns. Only complete lines count: a writer first removes a line that a kill cut off. A line
of old steps covers several steps (`row_thinning.py`) and has three more fields:

    [last step, first start, wall, own, 0, {"forward": 29520000000, ...}, 720, [[50000000, 700], ...], {"wall": [...]}]

Older lines move to a compressed file, where a row takes about 50 bytes. Together the two files hold each row once.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincope.private_files import file_mode
from traincope.store.layout import OLD_ROWS_FILE, ROWS_FILE
from traincope.store.lines import parse

STEP_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
"""Upper bounds in seconds of the buckets of step times, in merged rows and in the metric of step times."""

HOUR_NS = 3_600_000_000_000
PIECE_BYTES = 1 << 16
SINGLE_FIELDS, MERGED_FIELDS = 6, 9
"""Number of fields of a line for a single step, and for merged steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedSteps:
    """Distribution of single steps in a merged row."""

    num_steps: int
    lengths_ns: Mapping[int, int]
    """Upper bound of step times -> number of steps below it and above the previous bound."""
    quantiles_ns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """"wall" or a term -> its values per step at each of `row_thinning.QUANTILES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One finished step of one rank, or several old steps."""

    rank: int
    step: int
    """The last step of a merged row."""
    start_ns: int
    """Wall time since the epoch; in a merged row the begin of its first step."""
    wall_ns: int
    """Step time without evaluation; in a merged row a sum, like all following fields."""
    own_ns: int
    """The recorder's own time in the step."""
    anomalous: bool
    """True if on any rank of the node the step took far longer than others, or a fault happened in it."""
    terms: Mapping[str, int]
    """Ledger term -> ns; absent terms are 0. They sum to `wall_ns`, except that a step without detail has none."""
    merged: MergedSteps | None = None
    """None for a single step."""

    @property
    def num_steps(self) -> int:
        return 1 if self.merged is None else self.merged.num_steps

    @property
    def lengths_ns(self) -> Mapping[int, int]:
        """Upper bounds and counts as in `MergedSteps`; for a single step its wall time."""
        return {self.wall_ns: 1} if self.merged is None else self.merged.lengths_ns


def read_rows(directory: Path, *, rank: int) -> tuple[Row, ...]:
    """Read the rows of a rank's directory, by step; empty if no agent wrote any. Invalid lines are left out."""
    old = list(_rows(old_lines(directory), rank=rank))
    # A kill between writing the two files leaves the single rows of a merged hour among the newer lines.
    merged_until_ns = max((_hour_end_ns(row) for row in old if row.merged is not None), default=0)
    newer = (row for row in _rows(newer_lines(directory), rank=rank) if row.start_ns >= merged_until_ns)
    by_step = {row.step: row for row in (*old, *newer)}
    return tuple(by_step[step] for step in sorted(by_step))


def newer_lines(directory: Path) -> list[bytes]:
    """Complete lines of the file that the agent appends to."""
    try:
        return (directory / ROWS_FILE).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


def old_lines(directory: Path) -> list[bytes]:
    """Lines of the compressed file, as far as it is whole."""
    pieces = []
    cut_off = (FileNotFoundError, EOFError, gzip.BadGzipFile, zlib.error)
    with suppress(*cut_off), gzip.open(directory / OLD_ROWS_FILE) as file:
        while piece := file.read1(PIECE_BYTES):
            pieces.append(piece)
    return b"".join(pieces).split(b"\n")[:-1]


def _rows(lines: Iterable[bytes], *, rank: int) -> Iterator[Row]:
    rows = (_row(parse(line.decode(errors="replace")), rank=rank) for line in lines)
    return (row for row in rows if row is not None)


def _hour_end_ns(row: Row) -> int:
    return (row.start_ns // HOUR_NS + 1) * HOUR_NS


def line_of(row: Row) -> bytes:
    """One row as a line, with its line break."""
    return json.dumps(_fields(row), separators=(",", ":")).encode() + b"\n"


def append_rows(directory: Path, rows: Iterable[Row]) -> None:
    """Append rows in one write. Raises OSError if they cannot be written."""
    text = b"".join(map(line_of, rows))
    descriptor = os.open(directory / ROWS_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode())
    with open(descriptor, "r+b", buffering=0) as file:
        _cut_torn_line(file.fileno())
        file.write(text)


def _cut_torn_line(descriptor: int) -> None:
    """Remove an incomplete last line, left by a killed writer."""
    size = os.fstat(descriptor).st_size
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    content = os.pread(descriptor, size, 0)
    os.ftruncate(descriptor, content.rfind(b"\n") + 1)


def _fields(row: Row) -> list[object]:
    terms = {term: ns for term, ns in row.terms.items() if ns}
    fields = [row.step, row.start_ns, row.wall_ns, row.own_ns, int(row.anomalous), terms]
    return fields if row.merged is None else [*fields, *_merged_fields(row.merged)]


def _merged_fields(merged: MergedSteps) -> list[object]:
    return [merged.num_steps, list(merged.lengths_ns.items()), merged.quantiles_ns]


def _row(raw: Any, *, rank: int) -> Row | None:
    if (
        not isinstance(raw, list)
        or len(raw) not in (SINGLE_FIELDS, MERGED_FIELDS)
        or not isinstance(raw[SINGLE_FIELDS - 1], dict)
    ):
        return None
    (*numbers, terms), merged = raw[:SINGLE_FIELDS], raw[SINGLE_FIELDS:]
    if any(type(number) is not int for number in (*numbers, *terms.values())):
        return None
    step, start_ns, wall_ns, own_ns, anomalous = numbers
    try:
        return Row(
            rank=rank,
            step=step,
            start_ns=start_ns,
            wall_ns=wall_ns,
            own_ns=own_ns,
            anomalous=bool(anomalous),
            terms={str(term): ns for term, ns in terms.items()},
            merged=_merged(*merged) if merged else None,
        )
    except (AttributeError, TypeError, ValueError):
        return None


def _merged(num_steps: Any, lengths: Any, quantiles: Any) -> MergedSteps:
    return MergedSteps(
        num_steps=int(num_steps),
        lengths_ns={int(bound): int(count) for bound, count in lengths},
        quantiles_ns={str(term): tuple(map(int, values)) for term, values in quantiles.items()},
    )
