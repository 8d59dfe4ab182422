"""The critical path: what a step's end waited for, back to the step's beginning, from rank to rank.

From the instant at which the last rank ended the step the path goes back on that rank, as long as it did something of
its own. Where it stood still for a collective, or for a message, the path goes along the wire back to when the last
rank joined, and goes on there, on that rank, at that instant. So at every instant it is on one rank and in one term:
its segments tile the step, and a term that is not on it costs nothing now. What is waiting for others on one rank is on
the path what those others did; `exposed_wait` is on it only where records contradict each other.

A step of the job lasts from when all ranks have begun it to when all have ended it, an evaluation in it left out.
What is on the wire on the path holds the step up, also where its ranks computed meanwhile.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.host import Ints, Pieces
from traincope.analysis.ledger import Ledger
from traincope.analysis.pipeline import FINEST
from traincope.analysis.releases import Releases
from traincope.analysis.stalls import StallSplit
from traincope.analysis.terms import EVALUATION, HOST_TERMS, UNATTRIBUTED, exposed_transfer, exposed_wait
from traincope.timeline import Timeline, error_between_ns
from traincope.timeline.painting import NOBODY

MOST_STEPS = 1_000
"""Of more every second, or every third, ... is walked, the last one among them."""


class Segment(NamedTuple):
    """A part of the path: one rank in one term, ns of the timeline's axis."""

    rank: int
    term: str
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPath:
    """One step; its segments follow each other without gap."""

    number: int
    segments: tuple[Segment, ...]
    """In order of time; neighbours differ in rank or term."""
    untold_ns: int
    """Part of its transfers of which nobody knows whether they were waiting for a rank."""

    @property
    def start_ns(self) -> int:
        """When the last rank began the step."""
        return self.segments[0].start_ns

    @property
    def end_ns(self) -> int:
        """When the last rank ended it."""
        return self.segments[-1].end_ns

    @property
    def wall_ns(self) -> int:
        """From start to end, without evaluation."""
        return sum(segment.length_ns for segment in self.segments if segment.term != EVALUATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """Of the counted steps that all ranks completed, or evenly spread ones where there are very many."""

    steps: tuple[StepPath, ...] = ()
    clock_error_ns: int | None
    """How far the times of two ranks may be from each other's: where the path goes from one to the other."""
    reason: str | None = None
    """Why there is none."""

    @property
    def wall_ns(self) -> int:
        return sum(step.wall_ns for step in self.steps)

    @property
    def untold_ns(self) -> int:
        return sum(step.untold_ns for step in self.steps)

    @property
    def median_step(self) -> StepPath:
        """Of an even number the shorter of the two in the middle. There must be a step."""
        ordered = sorted(self.steps, key=lambda step: step.wall_ns)
        return ordered[(len(ordered) - 1) // 2]

    def shares(self) -> dict[tuple[int, str], int]:
        """(Rank, term) -> ns over all steps, the largest first; their sum is `wall_ns`."""
        sums: dict[tuple[int, str], int] = defaultdict(int)
        for step in self.steps:
            for segment in step.segments:
                sums[segment.rank, segment.term] += segment.length_ns
        own = {key: ns for key, ns in sums.items() if key[1] != EVALUATION}
        return dict(sorted(own.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What of a rank's time the path needs: little beside its pieces."""

    borders_ns: Ints
    """Of its pieces, one more than there are."""
    code: NDArray[np.int8]
    """Of each piece, its position in HOST_TERMS."""
    stalls: Ints
    """Which pieces a stall owns; the next three have one entry each."""
    axes: tuple[str, ...]
    axis_code: NDArray[np.int16]
    by: NDArray[np.int32]
    """Who released it, NOBODY where that is not told."""
    since_ns: Ints


def track(pieces: Pieces, split: StallSplit, released: Releases) -> Track:
    """One rank's."""
    return Track(
        borders_ns=np.append(pieces.start_ns, pieces.end_ns[-1:]),
        code=pieces.code,
        stalls=split.at,
        axes=split.axes,
        axis_code=split.axis_code.astype(np.int16),
        by=released.rank.astype(np.int32),
        since_ns=released.since_ns,
    )


def critical_path(timeline: Timeline, ledger: Ledger, tracks: Mapping[int, Track]) -> CriticalPath | None:
    """Of steps that count; None where none does. `tracks` are of all ranks of the timeline."""
    windows = step_windows(timeline, ledger)
    if not windows:
        return None
    every = -(-len(windows) // MOST_STEPS)
    error_ns = error_between_ns(timeline.clocks)
    reason = clocks_too_coarse(error_ns, min(window.end_ns - window.start_ns for window in windows))
    paths = (_step_path(window, tracks) for window in windows[::-every][::-1]) if reason is None else ()
    return CriticalPath(steps=tuple(paths), clock_error_ns=error_ns, reason=reason)


class Window(NamedTuple):
    """A step of the job."""

    number: int
    start_ns: int
    end_ns: int
    last: int
    """Rank that ended it last; of equals the lowest."""


def step_windows(timeline: Timeline, ledger: Ledger) -> tuple[Window, ...]:
    """The counted steps that all ranks completed which completed any, in order. Empty ones are left out."""
    counted = [set(rank.numbers[rank.counted].tolist()) for rank in ledger.ranks if len(rank.numbers)]
    common = sorted(set.intersection(*counted)) if counted else []
    steps = {rank.rank: {step.number: step for step in rank.steps} for rank in timeline.ranks if rank.steps}
    windows = []
    for number in common:
        start_ns = max(of[number].start_ns for of in steps.values())
        last = max(sorted(steps), key=lambda rank: steps[rank][number].end_ns)
        windows.append(Window(number, start_ns, steps[last][number].end_ns, last))
    return tuple(window for window in windows if window.end_ns > window.start_ns)


def clocks_too_coarse(error_ns: int | None, step_ns: int) -> str | None:
    """Why times of different ranks cannot be put in order, within FINEST of a step; None where they can."""
    if error_ns is None:
        return "nothing says how far the clocks of its hosts are from each other"
    if error_ns > FINEST * step_ns:
        far, length = f"{error_ns / 1e6:.2f} ms", f"{step_ns / 1e6:.2f} ms"
        return f"the clocks of its hosts may be {far} apart, and its shortest step takes {length}"
    return None


class _Span(NamedTuple):
    """Time on one rank in one term; None: whatever that rank did itself."""

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
    """Back through one step."""

    def __init__(self, tracks: Mapping[int, Track], window: Window) -> None:
        self._tracks = tracks
        self._begin_ns = window.start_ns
        self._rank, self._now_ns = window.last, window.end_ns
        self._asked: set[int] = set()
        """Ranks that were waiting at this very instant: if they wait for each other, the records contradict."""
        self.untold_ns = 0

    def back(self) -> Iterator[_Span]:
        """What the path is made of, the last of it first."""
        while self._now_ns > self._begin_ns:
            track = self._tracks[self._rank]
            piece = int(np.searchsorted(track.borders_ns, self._now_ns)) - 1
            stall = int(np.searchsorted(track.stalls, piece, side="right")) - 1
            if stall >= 0 and track.stalls[stall] == piece:
                yield from self._stalled(track, piece, stall)
            else:
                yield self._to(int(track.borders_ns[track.stalls[stall] + 1]) if stall >= 0 else self._begin_ns, None)

    def _stalled(self, track: Track, piece: int, stall: int) -> Iterator[_Span]:
        axis = track.axes[track.axis_code[stall]]
        by, since_ns = int(track.by[stall]), int(track.since_ns[stall])
        start_ns = int(track.borders_ns[piece])
        if by == NOBODY or by not in self._tracks:
            self.untold_ns += self._now_ns - max(start_ns, self._begin_ns)
            yield self._to(start_ns, exposed_transfer(axis))
        elif since_ns < self._now_ns:
            yield self._to(since_ns, exposed_transfer(axis))
            self._rank = by
        elif self._rank in self._asked:
            yield self._to(start_ns, exposed_wait(axis))
        else:
            self._asked.add(self._rank)
            self._rank = by

    def _to(self, start_ns: int, term: str | None) -> _Span:
        """On this rank from there to now, and then is now."""
        span = _Span(self._rank, term, max(start_ns, self._begin_ns), self._now_ns)
        self._now_ns = span.start_ns
        self._asked.clear()
        return span


def _parts(span: _Span, track: Track) -> Iterator[Segment]:
    """Its time by what the rank did itself; where nothing is recorded of it, that is told of nothing."""
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
        yield Segment(span.rank, HOST_TERMS[code], start_ns, end_ns)
    if borders[-1] < span.end_ns:
        yield Segment(span.rank, UNATTRIBUTED, borders[-1], span.end_ns)


def _joined(parts: Iterator[Segment]) -> Iterator[Segment]:
    """Neighbours alike as one, without the empty ones."""
    held: Segment | None = None
    for part in parts:
        if part.start_ns == part.end_ns:
            continue
        if held is not None and (held.rank, held.term) == (part.rank, part.term):
            held = held._replace(end_ns=part.end_ns)
            continue
        if held is not None:
            yield held
        held = part
    if held is not None:
        yield held
