"""Critical path: the chain of work and transfers, from rank to rank, that the end of a step waited for.

The path starts at the instant at which the last rank ended the step, and goes back in time on that rank while the rank
does its own work. At a stall for a collective or a message, the path follows the wire back to the instant at which the
last rank joined, and continues on that rank at that instant. So at every instant the path is on one rank and in one
term: its segments tile the step, and a term that is not on the path does not lengthen the step. A rank's wait for
others appears on the path as the work of those others; `exposed_wait` is on it only if records contradict each other.

A step of the job lasts from the instant at which all ranks have begun it to the instant at which all have ended it,
without evaluation. A transfer on the path delays the step even if its ranks compute at the same time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.releases import Releases
from traincope.analysis.attribution.stalls import StallSplit
from traincope.analysis.attribution.terms import (
    EVALUATION,
    UNATTRIBUTED,
    exposed_transfer,
    exposed_wait,
)
from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.analysis.pipeline.replicas import RESOLUTION_RATIO
from traincope.arrays import Bools, Ints
from traincope.timeline import Timeline, error_between_ns
from traincope.timeline.intervals.painting import ABSENT

MAX_STEPS = 1_000
"""Largest number of steps with a path. A longer run has paths of every second, third, ... step, up to the last."""


MAX_SEGMENTS = 2_000
"""Largest number of segments of a step that the document has. A longer path is too long to read."""


class Segment(NamedTuple):
    """Part of the path: one rank in one term."""

    rank: int
    term: str
    """A ledger term."""
    start_ns: int
    """Time on the timeline's axis; in the document, since the start of the step."""
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPath:
    """Critical path of one step. Its segments follow each other without a gap."""

    number: int
    segments: tuple[Segment, ...]
    """In order of time. Neighbours differ in rank or term."""
    untold_ns: int
    """Transfers on the path that may contain wait for a rank (ambiguous waits)."""

    @property
    def start_ns(self) -> int:
        """Instant at which the last rank began the step."""
        return self.segments[0].start_ns

    @property
    def end_ns(self) -> int:
        """Instant at which the last rank ended the step."""
        return self.segments[-1].end_ns

    @property
    def wall_ns(self) -> int:
        """From start to end, without evaluation."""
        return sum(self.terms.values())

    @property
    def terms(self) -> Mapping[str, int]:
        """Term -> ns, without evaluation."""
        sums: dict[str, int] = defaultdict(int)
        for segment in self.segments:
            if segment.term != EVALUATION:
                sums[segment.term] += segment.length_ns
        return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPath:
    """Part of the path on one rank."""

    rank: int
    ns: int
    terms: Mapping[str, int]
    """Ledger term -> ns of the path on this rank, the largest first."""


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """Critical paths of the counted steps that all ranks completed, or of at most 1,000 evenly spread ones."""

    steps: tuple[StepPath, ...] = ()
    clock_error_ns: int | None
    """Largest clock error between ranks, where the path changes ranks; None: unknown."""
    reason: str | None = None
    """Reason for a missing path; then there is no step."""

    @property
    def num_steps(self) -> int:
        """Counted steps that all ranks completed; above 1,000 a sample of evenly spaced steps."""
        return len(self.steps)

    @cached_property
    def wall_ns(self) -> int:
        """Sum over these steps of the time from the last rank's start to the last rank's end, without evaluation."""
        return sum(step.wall_ns for step in self.steps)

    @property
    def untold_ns(self) -> int:
        """Part of the transfers that may be waits for a rank; the records cannot separate them."""
        return sum(step.untold_ns for step in self.steps)

    @cached_property
    def ranks(self) -> tuple[RankPath, ...]:
        """Ranks on the path, the longest first; their sum is `wall_ns`."""
        ranks: dict[int, dict[str, int]] = defaultdict(dict)
        for (rank, term), ns in self.shares().items():
            ranks[rank][term] = ns
        paths = (RankPath(rank=rank, ns=sum(terms.values()), terms=terms) for rank, terms in ranks.items())
        return tuple(sorted(paths, key=lambda path: (-path.ns, path.rank)))

    @property
    def step(self) -> int | None:
        """The step of median length."""
        return self.median_step.number if self.steps else None

    @property
    def segments(self) -> tuple[Segment, ...] | None:
        """Segments of that step, in order and without gaps; None if there are more than 2,000."""
        if not self.steps or len(self.median_step.segments) > MAX_SEGMENTS:
            return None
        begin_ns = self.median_step.start_ns
        return tuple(
            Segment(rank, term, start_ns - begin_ns, end_ns - begin_ns)
            for rank, term, start_ns, end_ns in self.median_step.segments
        )

    @cached_property
    def median_step(self) -> StepPath:
        """The step of median length; of an even number, the shorter of the two in the middle. There must be a step."""
        ordered = sorted(self.steps, key=lambda step: step.wall_ns)
        return ordered[(len(ordered) - 1) // 2]

    @cached_property
    def terms(self) -> Mapping[str, int]:
        """Ledger term -> ns, the largest first; the sum is `wall_ns`. A wait appears as the work that it waited for."""
        sums: dict[str, int] = defaultdict(int)
        for step in self.steps:
            for term, ns in step.terms.items():
                sums[term] += ns
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    def shares(self) -> dict[tuple[int, str], int]:
        """Sum the path over all steps: (rank, term) -> ns, the largest first. The sum is `wall_ns`."""
        sums: dict[tuple[int, str], int] = defaultdict(int)
        for step in self.steps:
            for segment in step.segments:
                sums[segment.rank, segment.term] += segment.length_ns
        counted = {key: ns for key, ns in sums.items() if key[1] != EVALUATION}
        return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One rank's time as the path needs it. It is much smaller than the rank's slices."""

    borders_ns: Ints
    """Borders of its slices: one more than there are slices."""
    code: NDArray[np.int8]
    """Position of each slice's term in `terms`."""
    terms: tuple[str, ...]
    stalls: Ints
    """Positions of the slices that a stall owns. The arrays below have one entry per such slice."""
    axes: tuple[str, ...]
    axis_code: NDArray[np.int16]
    by: NDArray[np.int32]
    """The rank that released it, ABSENT if unknown."""
    since_ns: Ints


def track(slices: ThreadSlices, split: StallSplit, released: Releases) -> Track:
    """Build the track of one rank."""
    return Track(
        borders_ns=np.append(slices.start_ns, slices.end_ns[-1:]),
        code=slices.code,
        terms=slices.terms,
        stalls=split.at,
        axes=split.axes,
        axis_code=split.axis_code.astype(np.int16),
        by=released.rank.astype(np.int32),
        since_ns=released.since_ns,
    )


def critical_path(timeline: Timeline, ledger: Ledger, tracks: Mapping[int, Track]) -> CriticalPath | None:
    """Find the critical path of the counted steps; None without such steps. `tracks` are those of all ranks."""
    windows = step_windows(timeline, ledger, lambda rank: rank.counted)
    if not windows:
        return None
    every = -(-len(windows) // MAX_STEPS)
    error_ns = error_between_ns(timeline.clocks)
    reason = clocks_too_coarse(error_ns, min(window.length_ns for window in windows))
    chosen = windows[::-every][::-1] if reason is None else ()
    return CriticalPath(
        steps=tuple(_step_path(window, tracks) for window in chosen), clock_error_ns=error_ns, reason=reason
    )


class Window(NamedTuple):
    """One step of the job."""

    number: int
    start_ns: int
    end_ns: int
    last: int
    """The rank that ended it last; the lowest of equal ranks."""

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


def step_windows(timeline: Timeline, ledger: Ledger, chosen: Callable[[RankLedger], Bools]) -> tuple[Window, ...]:
    """List the chosen steps that all ranks with steps completed, in order, without empty ones."""
    numbers = [set(rank.numbers[chosen(rank)].tolist()) for rank in ledger.ranks if len(rank.numbers)]
    common = sorted(set.intersection(*numbers)) if numbers else []
    steps = {rank.rank: {step.number: step for step in rank.steps} for rank in timeline.ranks if rank.steps}
    windows = []
    for number in common:
        start_ns = max(of[number].start_ns for of in steps.values())
        last = max(sorted(steps), key=lambda rank: steps[rank][number].end_ns)
        windows.append(Window(number, start_ns, steps[last][number].end_ns, last))
    return tuple(window for window in windows if window.end_ns > window.start_ns)


def clocks_too_coarse(error_ns: int | None, step_ns: int) -> str | None:
    """Return why the clocks cannot order the ranks' times within RESOLUTION_RATIO of a step; None if they can."""
    if error_ns is None:
        return "the error between the clocks of its hosts is unknown"
    if error_ns > RESOLUTION_RATIO * step_ns:
        far, length = f"{error_ns / 1e6:.2f} ms", f"{step_ns / 1e6:.2f} ms"
        return f"the clocks of its hosts may be {far} apart, and its shortest step takes {length}"
    return None


class _Span(NamedTuple):
    """Time on one rank in one term; None: the rank's own work, of any term."""

    rank: int
    term: str | None
    start_ns: int
    end_ns: int


def _step_path(window: Window, tracks: Mapping[int, Track]) -> StepPath:
    walk = _Walk(tracks, window)
    spans = list(walk.back())
    return StepPath(
        number=window.number,
        segments=tuple(_joined(part for span in reversed(spans) for part in _parts(span, tracks[span.rank]))),
        untold_ns=walk.untold_ns,
    )


class _Walk:
    """Walk back through one step."""

    def __init__(self, tracks: Mapping[int, Track], window: Window) -> None:
        self._tracks = tracks
        self._begin_ns = window.start_ns
        self._rank, self._now_ns = window.last, window.end_ns
        self._waiting_ranks: set[int] = set()
        """Ranks that wait at this instant: if they wait for each other, the records contradict each other."""
        self.untold_ns = 0

    def back(self) -> Iterator[_Span]:
        """Yield the spans of the path, the last one first."""
        while self._now_ns > self._begin_ns:
            track = self._tracks[self._rank]
            slice_number = int(np.searchsorted(track.borders_ns, self._now_ns)) - 1
            stall = int(np.searchsorted(track.stalls, slice_number, side="right")) - 1
            if stall >= 0 and track.stalls[stall] == slice_number:
                yield from self._stalled(track, slice_number, stall)
            else:
                yield self._span_to(
                    int(track.borders_ns[track.stalls[stall] + 1]) if stall >= 0 else self._begin_ns, None
                )

    def _stalled(self, track: Track, slice_number: int, stall: int) -> Iterator[_Span]:
        axis = track.axes[track.axis_code[stall]]
        by, since_ns = int(track.by[stall]), int(track.since_ns[stall])
        start_ns = int(track.borders_ns[slice_number])
        if by == ABSENT or by not in self._tracks:
            self.untold_ns += self._now_ns - max(start_ns, self._begin_ns)
            yield self._span_to(start_ns, exposed_transfer(axis))
        elif since_ns < self._now_ns:
            yield self._span_to(since_ns, exposed_transfer(axis))
            self._rank = by
        elif self._rank in self._waiting_ranks:
            yield self._span_to(start_ns, exposed_wait(axis))
        else:
            self._waiting_ranks.add(self._rank)
            self._rank = by

    def _span_to(self, start_ns: int, term: str | None) -> _Span:
        """Return the span on this rank from `start_ns` to now, and move now to its start."""
        span = _Span(self._rank, term, max(start_ns, self._begin_ns), self._now_ns)
        self._now_ns = span.start_ns
        self._waiting_ranks.clear()
        return span


def _parts(span: _Span, track: Track) -> Iterator[Segment]:
    """Yield a span's time by the rank's own terms. Time without records is unattributed."""
    if span.term is not None:
        yield Segment(span.rank, span.term, span.start_ns, span.end_ns)
        return
    first = max(int(np.searchsorted(track.borders_ns, span.start_ns, side="right")) - 1, 0)
    last = int(np.searchsorted(track.borders_ns, span.end_ns))
    borders = np.clip(track.borders_ns[first : last + 1], span.start_ns, span.end_ns).tolist() or [span.end_ns]
    codes: Sequence[int] = track.code[first:last].tolist()
    if span.start_ns < borders[0]:
        yield Segment(span.rank, UNATTRIBUTED, span.start_ns, borders[0])
    for start_ns, end_ns, code in zip(borders, borders[1:], codes, strict=False):
        yield Segment(span.rank, track.terms[code], start_ns, end_ns)
    if borders[-1] < span.end_ns:
        yield Segment(span.rank, UNATTRIBUTED, borders[-1], span.end_ns)


def _joined(parts: Iterator[Segment]) -> Iterator[Segment]:
    """Join neighbours of the same rank and term, and drop empty segments."""
    last: Segment | None = None
    for part in parts:
        if part.start_ns == part.end_ns:
            continue
        if last is not None and (last.rank, last.term) == (part.rank, part.term):
            last = last._replace(end_ns=part.end_ns)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last
