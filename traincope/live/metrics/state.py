"""State of a node's numbers since its attempt began. `advance` is pure: state + window -> state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traincope.live.metrics.counting import counter_gains, highest_sums, window_points
from traincope.live.metrics.job import Job, advance_job
from traincope.live.metrics.series import SeriesKey, add_sums, series_key
from traincope.live.window import RankStatus, Window
from traincope.metrics import catalogue
from traincope.metrics.labels import MAX_LOGGED
from traincope.metrics.metric import Type
from traincope.metrics.sample import Distribution, Exemplar
from traincope.metrics.values import Points, bucket_of
from traincope.store import Attempt, LauncherNote
from traincope.store.job.manifests import RunInfo
from traincope.store.side_tables.rows import Row
from traincope.timeline import LedgerClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Histogram with times in ns, so that sums are exact."""

    counts: tuple[int, ...]
    """Count of each bucket alone. The last bucket is above all bounds."""
    sum_ns: int
    examples: Mapping[int, Exemplar]
    """Bucket -> its latest exemplar."""

    def plus(self, other: "Histogram") -> "Histogram":
        return Histogram(
            counts=tuple(count + more for count, more in zip(self.counts, other.counts, strict=True)),
            sum_ns=self.sum_ns + other.sum_ns,
            examples={**self.examples, **other.examples},
        )

    @property
    def distribution(self) -> Distribution:
        return Distribution(counts=self.counts, sum=self.sum_ns / 1e9)


def histogram(times_ns: NDArray[np.int64], *, bounds: Sequence[float]) -> Histogram:
    """Count times by bucket; `bounds` are upper bounds in seconds."""
    counts = np.bincount(bucket_of(times_ns / 1e9, bounds=bounds), minlength=len(bounds) + 1)
    return Histogram(counts=tuple(counts.tolist()), sum_ns=int(times_ns.sum()), examples={})


def histograms(window: Window, points: Sequence[Points]) -> dict[SeriesKey, Histogram]:
    """Histograms of the window's points. Exemplars come from the window's own steps."""
    result: dict[SeriesKey, Histogram] = {}
    for series_points in points:
        if series_points.metric.type is Type.HISTOGRAM:
            counted = histogram(series_points.values.astype(np.int64), bounds=series_points.metric.buckets)
            if series_points.total_ns is not None:
                counted = replace(counted, sum_ns=series_points.total_ns)
            result = merged(result, {series_key(series_points.metric, *series_points.labels): counted})
    key = series_key(catalogue.STEP_TIMES)
    if key in result:
        result[key] = replace(result[key], examples=_examples(window))
    return result


def merged(before: dict[SeriesKey, Histogram], more: dict[SeriesKey, Histogram]) -> dict[SeriesKey, Histogram]:
    return {**before, **{key: before[key].plus(value) if key in before else value for key, value in more.items()}}


def _examples(window: Window) -> dict[int, Exemplar]:
    """Bucket -> its latest step."""
    rows = sorted((row for row in window.rows if row.step != window.warm_up), key=lambda row: row.start_ns)
    walls = np.array([row.wall_ns for row in rows], dtype=np.int64) / 1e9
    buckets = bucket_of(walls, bounds=catalogue.STEP_TIMES.buckets).tolist()
    return {bucket: _example(row) for bucket, row in zip(buckets, rows, strict=True)}


def _example(row: Row) -> Exemplar:
    return Exemplar(
        value=row.wall_ns / 1e9,
        labels={"step": str(row.step), "rank": str(row.rank)},
        wall_ns=row.start_ns + row.wall_ns,
    )


def gauge_values(points: Sequence[Points], *, logged_by: Mapping[SeriesKey, int]) -> dict[SeriesKey, float]:
    """Gauges that the window knows. Others keep their earlier value. `logged_by`: see `logging_ranks`."""
    values = {}
    for series_points in points:
        key = series_key(series_points.metric, *series_points.labels)
        if (
            series_points.metric.type is Type.GAUGE
            and len(series_points.values)
            and (series_points.rank is None or logged_by.get(key) == series_points.rank)
        ):
            values[key] = _latest(series_points)
    return values


def logging_ranks(points: Sequence[Points], *, known: Mapping[SeriesKey, int]) -> dict[SeriesKey, int]:
    """Logged series -> lowest rank that logged it; at most `MAX_LOGGED` names, the first to appear."""
    lowest = dict(known)
    for series_points in points:
        if series_points.rank is not None:
            key = series_key(series_points.metric, *series_points.labels)
            if key in lowest or len(lowest) < MAX_LOGGED:
                lowest[key] = min(lowest.get(key, series_points.rank), series_points.rank)
    return lowest


def _latest(points: Points) -> float:
    if points.wholes is not None:
        return float(points.values.sum() / max(int(points.wholes.sum()), 1))
    value: float = points.values[points.times_ns.argsort(kind="stable")[-1]].item()
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Numbers after the latest window."""

    info: RunInfo
    attempt: int
    ranks: tuple[RankStatus, ...]
    at_ns: int
    """Time of the latest look, by `time.monotonic_ns()`."""
    sums: Mapping[SeriesKey, float]
    """Counters; in ns if the metric is in seconds. A sum with signed parts (the bubble's) may fall for a while."""
    highest: Mapping[SeriesKey, float]
    """Highest value of each counter, which is exported. A database takes a falling counter for a restarted one."""
    latest: Mapping[SeriesKey, float]
    """Gauges."""
    histograms: Mapping[SeriesKey, Histogram]
    clock: LedgerClock | None = None
    """Clock of the latest ledger; None before the first step with detail."""
    logged_by: Mapping[SeriesKey, int] = field(default_factory=dict)
    """Logged series -> lowest rank that logged it."""
    job: Job = field(default_factory=Job)


def begin(
    window: Window,
    *,
    earlier: tuple[Attempt, ...] = (),
    notes: tuple[LauncherNote, ...] = (),
    restored: tuple[Row, ...] = (),
) -> State:
    """State after the first window. `notes`: of the launcher, on the earlier attempts. `restored`: rows of the attempt
    that no window of this agent has.
    """
    empty = State(
        info=window.info,
        attempt=window.attempt,
        ranks=(),
        at_ns=window.at_ns,
        sums={},
        highest={},
        latest={},
        histograms={},
        job=Job(earlier=earlier, notes=notes),
    )
    return advance(empty, window, restored=restored)


def advance(state: State, window: Window, *, restored: tuple[Row, ...] = ()) -> State:
    """Add a window to `state`. `restored`: rows of ranks that appear for the first time."""
    points = window_points(window, restored=restored)
    gains = counter_gains(window, points, known=state.sums)
    logged_by = logging_ranks(points, known=state.logged_by)
    return replace(
        state,
        info=window.info,
        ranks=window.ranks or state.ranks,
        at_ns=window.at_ns,
        sums=add_sums(state.sums, {key: gain.total for key, gain in gains.items()}),
        highest=highest_sums(state.sums, state.highest, gains),
        latest={**state.latest, **gauge_values(points, logged_by=logged_by)},
        histograms=merged(dict(state.histograms), histograms(window, points)),
        clock=_clock(window) or state.clock,
        logged_by=logged_by,
        job=advance_job(state.job, window, restored=restored),
    )


def _clock(window: Window) -> LedgerClock | None:
    """Return the clock of the window's ledger; None if no step enters it. Steps without detail have no marks."""
    ledger = None if window.analysis is None else window.analysis.ledger
    return ledger.clock if ledger is not None and ledger.rank_steps else None
