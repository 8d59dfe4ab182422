"""Thinning of old ledger rows: the rows of one hour become one row with exact sums.

The merged row keeps quantiles and counts of step times. The first row (the warm-up step) and rows of anomalous steps
stay as they are. Sums over rows do not change. All but the newest lines move to a compressed file, which then has all
merged rows and all single rows of their hours.
"""

import gzip
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from traincope.arrays import Ints
from traincope.store.layout import OLD_ROWS_FILE, ROWS_FILE
from traincope.store.side_tables.rows import HOUR_NS, STEP_BUCKETS, MergedSteps, Row, line_of, newer_lines, read_rows
from traincope.whole_files import write_whole

UNMERGED_NS = 48 * HOUR_NS
"""Age, before a rank's newest row, from which rows are merged."""
PLAIN_ROWS = 720
"""Newest rows that stay uncompressed: an hour of steps of 5 s. `ls` and the report of very large runs read them."""
COMPRESSION = 6
"""Level of gzip: higher ones take several times as long for 1 % less."""
QUANTILES = (0.1, 0.5, 0.9, 0.99, 1.0)
WALL = "wall"
"""Name of the wall time among the terms."""
BOUNDS_NS = np.array([round(bound * 1e9) for bound in STEP_BUCKETS], dtype=np.int64)


def thin_rows(directory: Path, *, rank: int) -> int:
    """Thin the rows in a rank's directory; returns the number of rows saved.

    Only the writer of the rows may call this. Each file is replaced atomically, the compressed one first. Raises
    OSError.
    """
    rows = read_rows(directory, rank=rank)
    newest_ns = max((row.start_ns for row in rows), default=0)
    before_ns = (newest_ns - UNMERGED_NS) // HOUR_NS * HOUR_NS
    num_old = sum(row.start_ns < before_ns for row in rows)
    old = [*rows[:1], *_by_hour(rows[1:num_old])] if num_old else []
    thinned = [*old, *rows[num_old:]]
    if len(thinned) < len(rows) or len(newer_lines(directory)) > PLAIN_ROWS:
        path = directory / ROWS_FILE
        written = path.stat()
        # A reader takes newer lines within a merged hour for what a kill left there: no such row may stay among them.
        cut = max(len(thinned) - PLAIN_ROWS, len(old))
        if cut:
            content = gzip.compress(b"".join(map(line_of, thinned[:cut])), COMPRESSION, mtime=0)
            write_whole(directory / OLD_ROWS_FILE, content)
        write_whole(path, b"".join(map(line_of, thinned[cut:])))
        # The time of the last step: `ls` takes a run of another host for silent by the age of its rows.
        os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
    return len(rows) - len(thinned)


def merged_row(rows: Sequence[Row]) -> Row:
    """Merge rows, sorted by step, into one that is not anomalous."""
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
        merged=MergedSteps(
            num_steps=len(rows),
            lengths_ns=_lengths(walls_ns),
            quantiles_ns={name: _quantiles(column) for name, column in {WALL: walls_ns, **columns}.items()},
        ),
    )


def _by_hour(rows: Sequence[Row]) -> Iterator[Row]:
    for _, of_hour in groupby(rows, key=lambda row: row.start_ns // HOUR_NS):
        rows_of_hour = list(of_hour)
        usual = [row for row in rows_of_hour if not row.anomalous and row.merged is None]
        unmerged = [row for row in rows_of_hour if row.anomalous or row.merged is not None]
        yield from sorted([*unmerged, *([merged_row(usual)] if len(usual) > 1 else usual)], key=lambda row: row.step)


def _lengths(walls_ns: Ints) -> dict[int, int]:
    """Counts of step times per bucket; steps beyond all bounds count below the longest."""
    bounds = np.append(BOUNDS_NS, max(int(walls_ns.max()), int(BOUNDS_NS[-1]) + 1))
    counts = np.bincount(np.searchsorted(BOUNDS_NS, walls_ns), minlength=len(bounds))
    return {int(bound): int(count) for bound, count in zip(bounds, counts, strict=True) if count}


def _quantiles(values: Ints) -> tuple[int, ...]:
    """Quantiles; each is an observed value."""
    return tuple(int(value) for value in np.quantile(values, QUANTILES, method="inverted_cdf"))
