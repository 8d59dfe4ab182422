"""The numbers of a node's job since its attempt began, window by window. Pure: a state and a window are a state."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from traincope.live.counting import counts
from traincope.live.distributions import Histogram
from traincope.live.job import Job, further
from traincope.live.latest import gauges
from traincope.live.series import Series, added
from traincope.live.times import histograms, merged
from traincope.live.window import RankStatus, Window
from traincope.store import Attempt
from traincope.store.cards import RunInfo
from traincope.store.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """As of the latest window."""

    info: RunInfo
    attempt: int
    ranks: tuple[RankStatus, ...]
    at_ns: int
    """When the ranks were looked at, `time.monotonic_ns()`."""
    sums: Mapping[Series, int]
    """Counters; ns where the metric is in seconds. A sum with signed parts (the bubble's) may fall for a while."""
    highest: Mapping[Series, int]
    """What each of them has reached: a counter that falls would be taken for one that began anew."""
    latest: Mapping[Series, float]
    """Gauges."""
    histograms: Mapping[Series, Histogram]
    job: Job = field(default_factory=Job)


def begin(window: Window, *, earlier: tuple[Attempt, ...] = (), restored: tuple[Row, ...] = ()) -> State:
    """The first window's. `restored`: rows of the attempt that no window of this agent has."""
    nothing = State(
        info=window.info,
        attempt=window.attempt,
        ranks=(),
        at_ns=window.at_ns,
        sums={},
        highest={},
        latest={},
        histograms={},
        job=Job(earlier=earlier),
    )
    return advance(nothing, window, restored=restored)


def advance(state: State, window: Window, *, restored: tuple[Row, ...] = ()) -> State:
    """`state`, and what the window adds. `restored`: rows of ranks that are seen for the first time."""
    sums = added(state.sums, counts(window, restored=restored, known=state.sums))
    return replace(
        state,
        info=window.info,
        ranks=window.ranks or state.ranks,
        at_ns=window.at_ns,
        sums=sums,
        highest={key: max(state.highest.get(key, 0), value) for key, value in sums.items()},
        latest={**state.latest, **gauges(window, restored=restored, known=state.latest)},
        histograms=merged(dict(state.histograms), histograms(window, restored=restored)),
        job=further(state.job, window, restored=restored),
    )
