"""Rows of steps that are long past: those of an hour become one, whose sums are exact.

Of single steps it keeps quantiles, and how many took how long; the first row, which is of the step that warmed up, and
those of anomalous steps stay as they are. So all that is added up over rows is what it was before.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.metrics import STEP_BUCKETS
from traincope.store.layout import ROWS_FILE
from traincope.store.rows import Many, Row, line_of, read_rows

HOUR_NS = 3_600_000_000_000
KEPT_NS = 48 * HOUR_NS
"""Before a rank's newest row: rows since stay as they are."""
QUANTILES = (0.1, 0.5, 0.9, 0.99, 1.0)
WALL = "wall"
"""What the wall times are called among the terms."""
BOUNDS_NS = np.array([round(bound * 1e9) for bound in STEP_BUCKETS], dtype=np.int64)
UNBORN = ".new"

Ints = NDArray[np.int64]


def thin_rows(directory: Path, *, rank: int) -> int:
    """Of a rank's directory; returns by how many rows there are fewer.

    By whoever writes them, alone. The file is replaced as a whole, or stays as it is. Raises OSError.
    """
    rows = read_rows(directory, rank=rank)
    newest_ns = max((row.start_ns for row in rows), default=0)
    before_ns = (newest_ns - KEPT_NS) // HOUR_NS * HOUR_NS
    num_old = sum(row.start_ns < before_ns for row in rows)
    thinned = [*rows[:1], *_by_hour(rows[1:num_old]), *rows[max(num_old, 1) :]]
    if len(thinned) < len(rows):
        _replace(directory / ROWS_FILE, thinned)
    return len(rows) - len(thinned)


def summed(rows: Sequence[Row]) -> Row:
    """Several, by step, as one; none of them anomalous."""
    terms = sorted({term for row in rows for term in row.terms})
    columns = {term: np.array([row.terms.get(term, 0) for row in rows], dtype=np.int64) for term in terms}
    walls_ns = np.array([row.wall_ns for row in rows], dtype=np.int64)
    return Row(
        rank=rows[0].rank,
        step=rows[-1].step,
        start_ns=rows[0].start_ns,
        wall_ns=int(walls_ns.sum()),
        own_ns=sum(row.own_ns for row in rows),
        anomalous=False,
        terms={term: int(column.sum()) for term, column in columns.items()},
        many=Many(
            num_steps=len(rows),
            lengths_ns=_lengths(walls_ns),
            quantiles_ns={name: _quantiles(column) for name, column in {WALL: walls_ns, **columns}.items()},
        ),
    )


def _by_hour(rows: Sequence[Row]) -> Iterator[Row]:
    for _, of_hour in groupby(rows, key=lambda row: row.start_ns // HOUR_NS):
        own = list(of_hour)
        usual = [row for row in own if not row.anomalous and row.many is None]
        kept = [row for row in own if row.anomalous or row.many is not None]
        yield from sorted([*kept, *([summed(usual)] if len(usual) > 1 else usual)], key=lambda row: row.step)


def _lengths(walls_ns: Ints) -> dict[int, int]:
    """Those beyond all bounds are below the longest."""
    bounds = np.append(BOUNDS_NS, max(int(walls_ns.max()), int(BOUNDS_NS[-1]) + 1))
    counts = np.bincount(np.searchsorted(BOUNDS_NS, walls_ns), minlength=len(bounds))
    return {int(bound): int(count) for bound, count in zip(bounds, counts, strict=True) if count}


def _quantiles(values: Ints) -> tuple[int, ...]:
    """Of them each is a value that was seen."""
    return tuple(int(value) for value in np.quantile(values, QUANTILES, method="inverted_cdf"))


def _replace(path: Path, rows: Sequence[Row]) -> None:
    unborn = path.with_name(path.name + UNBORN)
    unborn.write_bytes(b"".join(map(line_of, rows)))
    os.replace(unborn, path)
