"""What `run.log()` was given: the first value that is no number, and values far above their neighbours."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from traincope.analysis.faults import Fault, FaultKind
from traincope.events import NO_STEP, Kind
from traincope.timeline import RankTimeline, Timeline

Floats = NDArray[np.float64]

WINDOW = 64
"""Values before it that one is held against."""
FEWEST = 32
"""With fewer before it nothing is told of a value."""
SIGMAS = 10.0
SCALE = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
LEAST_RISE = 0.1
"""Share of the median below which a rise is no spike, however quiet the series was."""
FRESH = 8
"""A spike is above each of so many before it: what follows at its side is the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """One name on one rank, in order."""

    rank: int
    name: str
    steps: NDArray[np.int32]
    times_ns: NDArray[np.int64]
    values: Floats


def logged_faults(timeline: Timeline) -> Iterator[Fault]:
    """For each name the first value that is not finite, and every spike, ranks that had it together."""
    named: dict[str, list[_Series]] = defaultdict(list)
    for rank in timeline.ranks:
        for series in _series(rank):
            named[series.name].append(series)
    for name, all_ranks in named.items():
        yield from _not_finite(name, all_ranks)
        yield from _spikes(name, all_ranks)


def spikes(values: Floats) -> NDArray[np.int64]:
    """Positions of values far above the (finite) ones before them.

    A value is a spike where it exceeds the median of the `WINDOW` before it by `SIGMAS` of their
    spread (1.4826 times the median absolute deviation) and by `LEAST_RISE` of that median, and exceeds
    each of the `FRESH` before it. A series without spread has no spikes: steps of a schedule are none.

    False alarms, a value, over 400,000 independent ones each: none for normal noise, 2e-5 for
    lognormal of sigma 0.3, 7e-5 for Laplace, 1e-3 for Student's t with 3 degrees of freedom, whose
    tails are spikes themselves. With half the window, at a run's start: none for normal noise.
    """
    if len(values) <= FEWEST:
        return np.empty(0, dtype=np.int64)
    padded = np.concatenate([np.full(WINDOW - FEWEST, np.nan), values])
    windows = sliding_window_view(padded, WINDOW)[:-1]
    later = values[FEWEST:]
    fresh = np.flatnonzero(later > sliding_window_view(values, FRESH)[FEWEST - FRESH : -1].max(axis=1))
    before = windows[fresh]
    median = np.nanmedian(before, axis=1) if len(fresh) else np.empty(0)
    spread = SCALE * np.nanmedian(np.abs(before - median[:, None]), axis=1) if len(fresh) else np.empty(0)
    rise = later[fresh] - median
    found = (rise > SIGMAS * spread) & (rise > LEAST_RISE * np.abs(median)) & (spread > 0)
    return fresh[found] + FEWEST


def _series(rank: RankTimeline) -> Iterator[_Series]:
    records = rank.of_kind(Kind.SCALAR)
    for number in np.unique(records["name"]).tolist():
        chosen = records[records["name"] == number]
        yield _Series(
            rank=rank.rank,
            name=rank.name(number),
            steps=chosen["step"],
            times_ns=chosen["start_ns"],
            values=np.ascontiguousarray(chosen["value"]).view(np.float64),
        )


def _not_finite(name: str, all_ranks: list[_Series]) -> Iterator[Fault]:
    """The first step at which any rank had such a value, with the ranks that had one there."""
    first = [(series, int(np.argmax(_bad(series)))) for series in all_ranks if _bad(series).any()]
    if not first:
        return
    step = min(int(series.steps[at]) for series, at in first)
    there = [(series, at) for series, at in first if series.steps[at] == step]
    series, at = min(there, key=lambda one: int(one[0].times_ns[one[1]]))
    later = int(_bad(series)[at + 1 :].sum())
    yield Fault(
        kind=FaultKind.NOT_FINITE,
        at_ns=int(series.times_ns[at]),
        ranks=tuple(sorted(one.rank for one, _ in there)),
        step=None if step == NO_STEP else step,
        what=f"{name} is {_shown(series.values[at])}",
        evidence=f"{_before(series, at)}; {_after(later, len(series.values) - at - 1)}",
    )


def _bad(series: _Series) -> NDArray[np.bool_]:
    return ~np.isfinite(series.values)


def _before(series: _Series, at: int) -> str:
    return f"it was {_shown(series.values[at - 1])} before" if at else "it was the first value"


def _after(bad: int, all_later: int) -> str:
    if not all_later:
        return "no value came later"
    return (
        f"{bad} of the {all_later} later values are not finite" if bad else f"all {all_later} later values are finite"
    )


def _spikes(name: str, all_ranks: list[_Series]) -> Iterator[Fault]:
    """Ranks that all-reduce a value log the same: a series is looked through once."""
    known: dict[bytes, NDArray[np.int64]] = {}
    found: dict[tuple[int, float], list[tuple[_Series, int]]] = defaultdict(list)
    for series in all_ranks:
        finite = np.flatnonzero(np.isfinite(series.values))
        values = series.values[finite]
        key = values.tobytes()
        if key not in known:
            known[key] = spikes(values)
        for at in finite[known[key]].tolist():
            found[int(series.steps[at]), float(series.values[at])].append((series, at))
    for (step, value), there in found.items():
        series, at = there[0]
        before = series.values[max(at - WINDOW, 0) : at]
        usual = float(np.median(before[np.isfinite(before)]))
        yield Fault(
            kind=FaultKind.SPIKE,
            at_ns=min(int(one.times_ns[where]) for one, where in there),
            ranks=tuple(sorted(one.rank for one, _ in there)),
            step=None if step == NO_STEP else step,
            what=f"{name} jumps to {_shown(value)}",
            evidence=f"the median of the {len(before)} values before is {_shown(usual)}",
        )


def _shown(value: float) -> str:
    return "NaN" if np.isnan(value) else f"{value:.4g}"
