"""What a window adds to the histograms of a node: times of its steps, and of its collectives."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincope import metrics
from traincope.events import Flag, Kind
from traincope.live.counting import Finished, in_steps
from traincope.live.distributions import Histogram, histogram
from traincope.live.series import Series, series
from traincope.live.window import Window
from traincope.metrics import Exemplar
from traincope.store.rows import Row
from traincope.timeline import RankTimeline
from traincope_exporters.telling import axis_of


def histograms(window: Window, *, restored: Sequence[Row]) -> dict[Series, Histogram]:
    """Of the counted steps; steps of an agent before this one without examples."""
    found = dict(_steps(Finished(rows=tuple(restored), warm_up=window.warm_up), examples=False))
    new = Finished(rows=window.rows, warm_up=window.warm_up)
    found = merged(found, dict(_steps(new, examples=True)))
    if window.analysis is not None:
        for rank in window.analysis.timeline.ranks:
            found = merged(found, dict(_collectives(rank, in_steps(rank, new.of(rank.rank)))))
    return found


def merged(one: dict[Series, Histogram], more: dict[Series, Histogram]) -> dict[Series, Histogram]:
    return {**one, **{key: one[key].plus(value) if key in one else value for key, value in more.items()}}


def _steps(finished: Finished, *, examples: bool) -> Iterator[tuple[Series, Histogram]]:
    rows = sorted(finished.counted, key=lambda row: row.start_ns)
    if rows:
        shown = [_example(row) for row in rows] if examples else []
        counted = histogram(_lengths_ns(rows), bounds=metrics.STEP_TIMES.buckets, examples=shown)
        yield series(metrics.STEP_TIMES), replace(counted, sum_ns=sum(row.wall_ns for row in rows))


def _lengths_ns(rows: Sequence[Row]) -> NDArray[np.int64]:
    """Of each step; of rows of several, which bucket each is in is known."""
    counts = np.array([pair for row in rows for pair in row.lengths_ns.items()], dtype=np.int64)
    return np.repeat(counts[:, 0], counts[:, 1])


def _example(row: Row) -> Exemplar:
    return Exemplar(
        value=row.wall_ns / 1e9,
        labels={"step": str(row.step), "rank": str(row.rank)},
        wall_ns=row.start_ns + row.wall_ns,
    )


def _collectives(rank: RankTimeline, records: NDArray[np.void]) -> Iterator[tuple[Series, Histogram]]:
    """Those whose end was seen when it came."""
    unseen = records["flags"] & (Flag.DONE_BEFORE_WAIT | Flag.RAISED) > 0
    chosen = records[(records["kind"] == Kind.COLLECTIVE) & ~unseen]
    kinds, of = np.unique(chosen[["group", "name"]], return_inverse=True)
    lengths_ns = chosen["end_ns"] - chosen["start_ns"]
    sums: dict[Series, Histogram] = {}
    for number, (group, name) in enumerate(kinds.tolist()):
        key = series(metrics.COLLECTIVE_TIMES, axis_of(rank.axis(group)), rank.name(name))
        counted = histogram(lengths_ns[of == number], bounds=metrics.COLLECTIVE_TIMES.buckets)
        sums[key] = sums[key].plus(counted) if key in sums else counted
    yield from sums.items()
