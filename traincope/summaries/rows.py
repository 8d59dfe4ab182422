"""The newest ledger rows of a rank, as columns."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from traincope.arrays import Bools, Ints
from traincope.store.layout import ROWS_FILE

NEWEST_ROWS = 240
"""Rows of a summary: enough to name a straggler among 16,384 ranks."""
ROW_BYTES = 400
"""Bytes that a row takes at most, usually."""
STEP, WALL, OWN = range(3)
"""The first columns; terms follow."""

Number = Annotated[int, msgspec.Meta(gt=-(1 << 62), lt=1 << 62)]
_Row = tuple[Number, Number, Number, Number, Number, dict[str, Number]]
_decoder = msgspec.json.Decoder(_Row)
"""Of a row of a single step, as `store/side_tables/rows.py` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Single steps of one rank, the newest ones, in order. Arrays have one entry per step."""

    names: tuple[str, ...]
    """Ledger terms."""
    columns: Ints
    """(3 + terms, steps): step, wall time, the recorder's own time, then each term, in ns. One array, because workers
    send it.
    """

    @property
    def step(self) -> Ints:
        values: Ints = self.columns[STEP]
        return values

    @property
    def wall_ns(self) -> Ints:
        values: Ints = self.columns[WALL]
        return values

    @property
    def own_ns(self) -> Ints:
        """The recorder's own time."""
        values: Ints = self.columns[OWN]
        return values

    @property
    def terms_ns(self) -> Ints:
        """(terms, steps), in the order of `names`."""
        values: Ints = self.columns[OWN + 1 :]
        return values

    @property
    def terms(self) -> Mapping[str, Ints]:
        """Ledger term -> ns."""
        return dict(zip(self.names, self.terms_ns, strict=True))

    @property
    def detailed(self) -> Bools:
        """Steps with terms. A step without detail has none, so its terms are unknown, not 0."""
        steps: Bools = np.any(self.terms_ns, axis=0)
        return steps


def newest_rows(directory: Path) -> Rows:
    """The newest rows of single steps. Lines that cannot be decoded are left out."""
    by_step = {row[0]: row for row in _decoded(_last_lines(directory / ROWS_FILE))}
    rows = [by_step[step] for step in sorted(by_step)][-NEWEST_ROWS:]
    terms: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        for term, ns in row[5].items():
            if term not in terms:
                terms[term] = [0] * len(rows)
            terms[term][at] = ns
    first = [[row[field] for row in rows] for field in (0, 2, 3)]
    return Rows(names=tuple(terms), columns=np.array([*first, *terms.values()], dtype=np.int64))


def _decoded(lines: Iterable[bytes]) -> list[_Row]:
    rows = []
    for line in lines:
        try:
            rows.append(_decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return rows


def _last_lines(path: Path) -> list[bytes]:
    """Complete lines at the end of the file."""
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            first = max(size - NEWEST_ROWS * ROW_BYTES, 0)
            file.seek(first)
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return lines[1:] if first else lines
