"""Metrics of finished steps, computed from ledger rows: counts, step times and ledger terms."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from traincope.analysis import RankLedger
from traincope.arrays import Bools, Floats, Ints
from traincope.metrics import catalogue
from traincope.metrics.labels import term_and_axis
from traincope.metrics.metric import Metric
from traincope.metrics.values.points import NS, Points, to_ints
from traincope.store.side_tables.rows import Row
from traincope.timeline import RankTimeline

ROW_METRICS = (
    catalogue.STEPS,
    catalogue.OWN_TIME,
    catalogue.LAST_STEP,
    catalogue.STEP_DURATION,
    catalogue.WALL,
    catalogue.STEP_TIMES,
    catalogue.LEDGER,
)
"""Metrics that `row_points` yields."""


def step_rows(ledger: RankLedger, timeline: RankTimeline, *, light: Collection[int], after: int = -1) -> Iterator[Row]:
    """Rows of a rank's complete steps whose number is above `after`. Those of `light` steps have no terms."""
    terms = {term: values.tolist() for term, values in ledger.terms.items() if values is not None}
    walls = ledger.wall_ns.tolist()
    for at, step in enumerate(timeline.steps):
        if step.number > after:
            yield Row(
                rank=timeline.rank,
                step=step.number,
                start_ns=step.start_ns,
                wall_ns=walls[at],
                own_ns=step.own_ns,
                anomalous=False,
                terms={term: values[at] for term, values in terms.items() if values[at] and step.number not in light},
            )


def row_points(
    rows: Sequence[Row], *, excluded: Collection[int], ends_ns: Mapping[tuple[int, int], int] | None = None
) -> Iterator[Points]:
    """Yield the metrics of finished steps.

    `excluded`: step numbers that enter no sum of time. `ends_ns`: (rank, step) -> end of the step, if it is known
    exactly.
    """
    for rank in sorted({row.rank for row in rows}):
        sum_by_step = sorted((row for row in rows if row.rank == rank), key=lambda row: row.step)
        yield from _rank_row_points(rank, sum_by_step, frozenset(excluded), ends_ns or {})


def _rank_row_points(
    rank: int, rows: list[Row], excluded: frozenset[int], ends_ns: Mapping[tuple[int, int], int]
) -> Iterator[Points]:
    times = to_ints(ends_ns.get((rank, row.step), row.start_ns + row.wall_ns) for row in rows)
    walls = to_ints(row.wall_ns for row in rows)
    single = np.array([row.merged is None for row in rows], dtype=bool)
    counted = np.array([row.step not in excluded for row in rows], dtype=bool)

    def points(metric: Metric, values: Ints | Floats, chosen: Bools, *labels: object) -> Points:
        return Points(metric=metric, labels=labels, times_ns=times[chosen], values=values[chosen])

    every = np.ones(len(rows), dtype=bool)
    yield points(catalogue.STEPS, to_ints(row.num_steps for row in rows), every, rank)
    yield points(catalogue.OWN_TIME, to_ints(row.own_ns for row in rows), every)
    yield points(catalogue.LAST_STEP, to_ints(row.step for row in rows), every, rank)
    yield points(catalogue.STEP_DURATION, walls / NS, single, rank)
    yield points(catalogue.WALL, to_ints(sum(row.terms.values()) for row in rows), counted, rank)
    kept = [row for row, is_counted in zip(rows, counted, strict=True) if is_counted]
    if kept:
        yield _step_times(kept, times[counted], walls[counted])
    for (term, axis), values in _terms(rows).items():
        if values[counted].any():
            yield points(catalogue.LEDGER, values, counted, rank, term, axis)


def _step_times(rows: list[Row], times_ns: Ints, walls_ns: Ints) -> Points:
    lengths = [pair for row in rows for pair in row.lengths_ns.items()]
    counts = to_ints(count for _, count in lengths)
    ends = np.repeat(times_ns, [len(row.lengths_ns) for row in rows])
    return Points(
        metric=catalogue.STEP_TIMES,
        labels=(),
        times_ns=np.repeat(ends, counts),
        values=np.repeat(to_ints(length for length, _ in lengths), counts),
        total_ns=int(walls_ns.sum()),
    )


def _terms(rows: list[Row]) -> dict[tuple[str, str], Ints]:
    """(Term, axis) -> ns of each row."""
    sums: dict[tuple[str, str], Ints] = {}
    for at, row in enumerate(rows):
        for term, ns in row.terms.items():
            sums.setdefault(term_and_axis(term), np.zeros(len(rows), dtype=np.int64))[at] += ns
    return sums


def is_shown(metric: Metric, value: float) -> bool:
    """True if a counter with this value has a series. Terms of the ledger have one only if they took time."""
    return value > 0 or metric is not catalogue.LEDGER
