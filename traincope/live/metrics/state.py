"""State of a node's numbers since its attempt began. `advance` is pure: state + window -> state."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from traincope.live.metrics.counting import counter_gains, highest_sums, window_points
from traincope.live.metrics.histograms import Histogram, histograms, merged
from traincope.live.metrics.job import Job, advance_job
from traincope.live.metrics.latest import gauge_values, logging_ranks
from traincope.live.metrics.series import SeriesKey, add_sums
from traincope.live.window import RankStatus, Window
from traincope.store import Attempt, LauncherNote
from traincope.store.job.manifests import RunInfo
from traincope.store.side_tables.rows import Row
from traincope.timeline import LedgerClock


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
