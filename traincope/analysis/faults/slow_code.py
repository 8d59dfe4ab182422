"""Code in which a rank spends more time than its peers, from samples of their Python stacks in a requested window.

A sample stands for the pause between two samples. Samples during a stall for communication do not count: the peers of
a slow rank wait there. A line is reported if a rank has significantly more samples in it than each of its peers: the
difference of two counts is at least four times its standard deviation, the root of their sum (Poisson).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.terms import ACTION_TERMS, PHASE_TERMS, UNATTRIBUTED
from traincope.analysis.faults.stacks import Frame, Place, place_of
from traincope.arrays import Bools, Ints
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.store import RankRecords, RunRecords
from traincope.store.segments.stack_samples import Site, StackSamples

SIGNIFICANT = 4.0
"""Standard deviations. This and the two below are ours."""
MIN_SHARE = 0.02
"""Smallest part of the step time that is worth a line."""
MAX_LINES = 3
"""Most lines of a window."""
MAX_GAP = 5
"""A pause of more than this many intervals was not seen: C code held Python's lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the training's code, with what it called and where it was called."""

    site: str
    """File and line, e.g. `train.py:31`."""
    function: str
    """Qualified name of the function that contains it."""
    called: str
    """Function that the line had called; empty if it is unknown or the line itself ran."""
    module: str
    """Name of the model's module around it; empty outside of modules."""
    term: str
    """Ledger term of the phase, or `unattributed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCode:
    """A line in which a rank spends more time than each of its peers."""

    rank: int
    line: Line
    ns: int
    """Mean time of the rank in the line, per step."""
    peers_ns: int
    """The largest such time of a peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledWindow:
    """Samples of a window, compared between ranks."""

    first_step: int
    last_step: int
    """First and last step with detail on all of its ranks."""
    steps: int
    ranks: tuple[int, ...]
    slow: tuple[SlowCode, ...]
    """The largest differences first; empty if no rank differs significantly."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    rank: RankRecords
    samples: StackSamples


def slow_code(run: RunRecords) -> tuple[SampledWindow, ...]:
    """Compare the ranks of each window in which at least two sampled their stacks."""
    found = [_Sampled(rank, samples) for rank in run.ranks for samples in rank.stack_samples()]
    found.sort(key=lambda each: each.samples.first_step)
    windows = (tuple(each) for _, each in groupby(found, key=lambda each: each.samples.first_step))
    return tuple(window for each in windows if len(each) > 1 and (window := _compared(each)) is not None)


def _compared(sampled: Sequence[_Sampled]) -> SampledWindow | None:
    steps = np.array(sorted(set.intersection(*(_detailed_steps(each) for each in sampled))), dtype=np.int64)
    if not len(steps):
        return None
    counts = {each.rank.rank: _counts(each, steps) for each in sampled}
    step_ns = max(float(np.mean(_lengths_ns(each.rank, steps))) for each in sampled)
    per_step_ns = sampled[0].samples.interval_ns / len(steps)
    slow = sorted(_differences(counts, per_step_ns, at_least_ns=MIN_SHARE * step_ns), key=_excess_ns, reverse=True)
    return SampledWindow(
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        steps=len(steps),
        ranks=tuple(counts),
        slow=tuple(slow[:MAX_LINES]),
    )


def _excess_ns(slow: SlowCode) -> int:
    return slow.ns - slow.peers_ns


def _differences(
    counts: Mapping[int, Mapping[Line, float]], per_step_ns: float, *, at_least_ns: float
) -> Iterator[SlowCode]:
    for rank, of in counts.items():
        peers = [other for number, other in counts.items() if number != rank]
        for line, count in of.items():
            others = max(peer.get(line, 0.0) for peer in peers)
            excess = count - others
            if excess * per_step_ns >= at_least_ns and excess >= SIGNIFICANT * (count + others) ** 0.5:
                yield SlowCode(
                    rank=rank, line=line, ns=round(count * per_step_ns), peers_ns=round(others * per_step_ns)
                )


def _counts(sampled: _Sampled, steps: Ints) -> Mapping[Line, float]:
    """Count the samples of each line, in intervals, outside of stalls for communication and within the steps."""
    samples, main = sampled.samples, sampled.rank.thread("main")
    intervals = np.diff(samples.times_ns, prepend=samples.times_ns[:1]) / samples.interval_ns
    intervals[:1] = 1.0
    seen = intervals <= MAX_GAP
    times_ns = samples.times_ns
    chosen = seen & _inside(main[(main["kind"] == Kind.STEP) & np.isin(main["step"], steps)], times_ns)
    chosen &= ~_inside(main[main["kind"] == Kind.STALL], times_ns)
    terms = _terms(sampled.rank, times_ns)
    counts: dict[Line, float] = defaultdict(float)
    lines = [_line(stack) for stack in samples.stacks]
    for at in np.flatnonzero(chosen).tolist():
        line = lines[samples.stack[at]]
        if line is not None:
            site, function, called, module = line
            named = Line(site=site, function=function, called=called, module=module, term=terms[at])
            counts[named] += float(intervals[at])
    return counts


def _line(stack: Sequence[Site]) -> tuple[str, str, str, str] | None:
    """The innermost line of the training's own code; None in communication, or without frames."""
    frames = tuple(Frame(path=site.path, line=site.line, function=site.function) for site in stack)
    if not frames or place_of(frames) is Place.COMMUNICATION:
        return None
    at = next((number for number, frame in enumerate(frames) if frame.is_training), 0)
    site = stack[at]
    called = site.called if at == 0 else stack[at - 1].function
    return f"{PurePath(site.path).name}:{site.line}", site.function, called, site.module


def _detailed_steps(sampled: _Sampled) -> set[int]:
    """Complete steps with detail that the samples span."""
    main, times_ns = sampled.rank.thread("main"), sampled.samples.times_ns
    steps = main[(main["kind"] == Kind.STEP) & (main["flags"] & Flag.DETAILED > 0) & (main["end_ns"] != OPEN)]
    if not len(times_ns):
        return set()
    spanned = (steps["step"] > sampled.samples.first_step) & (steps["end_ns"] <= times_ns[-1])
    return set(steps["step"][spanned & (steps["start_ns"] >= times_ns[0])].tolist())


def _lengths_ns(rank: RankRecords, steps: Ints) -> Ints:
    main = rank.thread("main")
    rows = main[(main["kind"] == Kind.STEP) & np.isin(main["step"], steps)]
    lengths: Ints = rows["end_ns"] - rows["start_ns"]
    return lengths


def _inside(records: NDArray[np.void], times_ns: Ints) -> Bools:
    """Mark the times within any of the records."""
    inside = np.zeros(len(times_ns), dtype=bool)
    first, last = (np.searchsorted(times_ns, records[name]) for name in ("start_ns", "end_ns"))
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        inside[begin:end] = True
    return inside


def _terms(rank: RankRecords, times_ns: Ints) -> list[str]:
    """Return the ledger term of the innermost phase or pipeline action at each time."""
    main = rank.thread("main")
    phases = main[np.isin(main["kind"], (Kind.PHASE, Kind.ACTION))]
    terms = np.full(len(times_ns), UNATTRIBUTED, dtype=object)
    first, last = (np.searchsorted(times_ns, phases[name]) for name in ("start_ns", "end_ns"))
    for begin, end, row in zip(first.tolist(), last.tolist(), phases, strict=True):
        action = ACTION_TERMS.get(rank.name(int(row["name"]))) if row["kind"] == Kind.ACTION else None
        terms[begin:end] = action or PHASE_TERMS.get(Phase(int(row["phase"])), UNATTRIBUTED)
    return list(terms)
