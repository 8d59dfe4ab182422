"""Faults in values given to `run.log()`: the first that is not finite, and values far above the ones before."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from traincope.analysis.faults.anomalies.traced_values import Jumps
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.arrays import Floats
from traincope.events import NO_STEP, ROLLOUT, Kind
from traincope.timeline import RankTimeline, Timeline

WINDOW = 64
"""Number of previous values that a value is compared with."""
MIN_VALUES = 32
"""Fewest previous values for a spike."""
SIGMAS = 10.0
SCALE = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
MIN_RISE = 0.1
"""Share of the median that a spike must rise by, however quiet the series was."""
FRESH = 8
"""A spike exceeds each of this many values before it. Values that stay up belong to the same spike."""


HOPED_FOR = re.compile(
    r"(^|[/_.\s-])(rewards?|returns?|acc(uracy)?|scores?|f1|bleu|rouge|precision|recall|win_?rate|success|mfu|speed"
    r"|throughput|samples_per_second|tokens_per_second)($|[/_.\s@-])",
    re.IGNORECASE,
)
"""Names of values that a training wants to rise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """One name on one rank, in order."""

    rank: int
    name: str
    steps: NDArray[np.int32]
    times_ns: NDArray[np.int64]
    values: Floats


def logged_faults(timeline: Timeline) -> Iterator[Fault]:
    """For each name the first value that is not finite, and every spike, with the ranks that logged it.

    A value that the training wants to rise has no spikes, nor have lengths of rollouts.
    """
    named: dict[str, list[_Series]] = defaultdict(list)
    for rank in timeline.ranks:
        for series in _series(rank):
            named[series.name].append(series)
    jumps = Jumps(timeline)
    for name, all_ranks in named.items():
        yield from _not_finite(name, all_ranks)
        if name not in ROLLOUT and (not HOPED_FOR.search(name) or "loss" in name.lower()):
            yield from _spikes(name, all_ranks, jumps)


def spikes(values: Floats) -> NDArray[np.int64]:
    """Positions of values far above the finite ones before them.

    A value is a spike if it exceeds the median of the `WINDOW` values before it by `SIGMAS` times their spread (1.4826
    times the median absolute deviation) and by `MIN_RISE` of that median, and exceeds each of the `FRESH` values before
    it. A series without spread has no spikes: steps of a schedule are not spikes.

    Measured false alarms per value, over 400,000 independent ones each: 0 for normal noise, 2e-5 for lognormal noise of
    sigma 0.3, 7e-5 for Laplace, 1e-3 for Student's t with 3 degrees of freedom, whose tails are spikes themselves. With
    half the window, at the start of a run: 0 for normal noise.
    """
    if len(values) <= MIN_VALUES:
        return np.empty(0, dtype=np.int64)
    padded = np.concatenate([np.full(WINDOW - MIN_VALUES, np.nan), values])
    windows = sliding_window_view(padded, WINDOW)[:-1]
    later = values[MIN_VALUES:]
    fresh = np.flatnonzero(later > sliding_window_view(values, FRESH)[MIN_VALUES - FRESH : -1].max(axis=1))
    before = windows[fresh]
    median = np.nanmedian(before, axis=1) if len(fresh) else np.empty(0)
    spread = SCALE * np.nanmedian(np.abs(before - median[:, None]), axis=1) if len(fresh) else np.empty(0)
    rise = later[fresh] - median
    is_spike = (rise > SIGMAS * spread) & (rise > MIN_RISE * np.abs(median)) & (spread > 0)
    return fresh[is_spike] + MIN_VALUES


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
    """The first step with such a value on any rank, and the ranks that had one in that step."""
    first = [(series, int(np.argmax(_bad(series)))) for series in all_ranks if _bad(series).any()]
    if not first:
        return
    step = min(int(series.steps[at]) for series, at in first)
    sharing = [(series, at) for series, at in first if series.steps[at] == step]
    series, at = min(sharing, key=lambda pair: int(pair[0].times_ns[pair[1]]))
    later = int(_bad(series)[at + 1 :].sum())
    yield Fault(
        kind=FaultKind.NOT_FINITE,
        at_ns=int(series.times_ns[at]),
        ranks=tuple(sorted(series.rank for series, _ in sharing)),
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


def _spikes(name: str, all_ranks: list[_Series], jumps: Jumps) -> Iterator[Fault]:
    """Spikes of one name. Ranks that all-reduce a value log the same series, which is searched once."""
    known: dict[bytes, NDArray[np.int64]] = {}
    by_value: dict[tuple[int, float], list[tuple[_Series, int]]] = defaultdict(list)
    for series in all_ranks:
        finite = np.flatnonzero(np.isfinite(series.values))
        values = series.values[finite]
        key = values.tobytes()
        if key not in known:
            known[key] = spikes(values)
        for at in finite[known[key]].tolist():
            by_value[int(series.steps[at]), float(series.values[at])].append((series, at))
    for (step, value), sharing in by_value.items():
        series, at = sharing[0]
        before = series.values[max(at - WINDOW, 0) : at]
        usual = float(np.median(before[np.isfinite(before)]))
        yield Fault(
            kind=FaultKind.SPIKE,
            at_ns=min(int(series_of_rank.times_ns[where]) for series_of_rank, where in sharing),
            ranks=tuple(sorted(series_of_rank.rank for series_of_rank, _ in sharing)),
            step=None if step == NO_STEP else step,
            what=f"{name} jumps to {_shown(value)}",
            evidence="; ".join(
                filter(None, (f"the median of the {len(before)} values before is {_shown(usual)}", jumps.behind(step)))
            ),
        )


def _shown(value: float) -> str:
    return "NaN" if np.isnan(value) else f"{value:.4g}"
