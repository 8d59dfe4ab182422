"""Goodput over a rolling window of time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis.efficiency.goodput import Goodput
from traincope.arrays import Floats, Ints
from traincope.store import Attempt
from traincope.timeline import Timeline

HOUR_NS = 3_600_000_000_000
WINDOWS_NS = (HOUR_NS, 24 * HOUR_NS)
MAX_POINTS = 100
NO_SPANS = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A time in which productive time is spread evenly; `productive_ns` is at most its length."""

    start_ns: int
    end_ns: int
    productive_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """Productive share of the `window_ns` before each instant; of a logbook, the share in which a run ran."""

    window_ns: int
    ends_ns: tuple[int, ...]
    """Wall clock, ns since the epoch, in equal distances; the last is the end of the job."""
    ratios: tuple[float, ...]


def rolling(stretches: Sequence[Stretch], *, start_ns: int, end_ns: int) -> tuple[Rolling, ...]:
    """The windows of an hour and of a day, as far as the job was that long."""
    return tuple(
        _rolling(stretches, start_ns=start_ns, end_ns=end_ns, window_ns=window_ns)
        for window_ns in WINDOWS_NS
        if end_ns - start_ns >= window_ns
    )


def productive_between(stretches: Sequence[Stretch], start_ns: int, end_ns: int) -> float:
    """Productive share of the time between two instants."""
    before, after = _productive_until(stretches, np.array([start_ns, end_ns], dtype=np.int64)).tolist()
    return float(after - before) / (end_ns - start_ns)


def job_stretches(job: Goodput, timeline: Timeline) -> tuple[Stretch, ...] | None:
    """Productive time of a recorded job; None if its lost steps are unknown. Together it is `productive_ns`.

    `timeline` holds the single steps of the last attempt. Those of earlier attempts are summaries: what survived of one
    is spread evenly from its first step over as large a part of its time as its surviving steps are of all its steps.
    """
    stretches: list[Stretch] = []
    for attempt in job.attempts:
        productive_ns = job.productive_of(attempt)
        if productive_ns is None:
            return None
        if attempt.first_step_ns is not None and productive_ns:
            spans = _last_steps(timeline) if attempt is job.attempts[-1] else NO_SPANS
            stretches += _spread(spans if len(spans) else _one_span(attempt, productive_ns), productive_ns)
    return tuple(stretches)


def _one_span(attempt: Attempt, productive_ns: int) -> Ints:
    first_ns = attempt.first_step_ns or attempt.began_ns
    length_ns = round((attempt.last_ns - first_ns) * productive_ns / attempt.steps_ns)
    return np.array([[first_ns, first_ns + max(length_ns, productive_ns)]], dtype=np.int64)


def _last_steps(timeline: Timeline) -> Ints:
    """(start, end) of each complete step of the lowest rank."""
    steps = next((rank.steps for rank in timeline.ranks if rank.steps), ())
    return np.array([(step.start_ns, step.end_ns) for step in steps], dtype=np.int64).reshape(-1, 2)


def _spread(spans: Ints, productive_ns: int) -> Iterator[Stretch]:
    """Share productive time out by length."""
    whole = int((spans[:, 1] - spans[:, 0]).sum())
    for start_ns, end_ns in spans.tolist():
        part_ns = min(round(productive_ns * (end_ns - start_ns) / whole), end_ns - start_ns) if whole else 0
        yield Stretch(start_ns=start_ns, end_ns=end_ns, productive_ns=part_ns)


def _rolling(stretches: Sequence[Stretch], *, start_ns: int, end_ns: int, window_ns: int) -> Rolling:
    span_ns = end_ns - start_ns - window_ns
    last = min(span_ns * 4 // window_ns, MAX_POINTS - 1)
    ends = np.array([end_ns - span_ns * at // max(last, 1) for at in range(last, -1, -1)], dtype=np.int64)
    done = _productive_until(stretches, ends) - _productive_until(stretches, ends - window_ns)
    return Rolling(
        window_ns=window_ns,
        ends_ns=tuple(ends.tolist()),
        ratios=tuple(round(ratio, 6) for ratio in (done / window_ns).clip(0, 1).tolist()),
    )


def _productive_until(stretches: Sequence[Stretch], times_ns: Ints) -> Floats:
    if not stretches:
        return np.zeros(len(times_ns))
    ordered = sorted(stretches, key=lambda stretch: stretch.start_ns)
    starts = np.array([stretch.start_ns for stretch in ordered], dtype=np.int64)
    ends = np.array([stretch.end_ns for stretch in ordered], dtype=np.int64)
    done = np.cumsum([stretch.productive_ns for stretch in ordered])
    borders = np.maximum.accumulate(np.stack([starts, ends], axis=1).reshape(-1)) - starts[0]
    reached = np.stack([done - [stretch.productive_ns for stretch in ordered], done], axis=1).reshape(-1)
    until: Floats = np.interp(times_ns - starts[0], borders, reached)
    return until
