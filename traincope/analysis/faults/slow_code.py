"""Code in which a rank spends more time than its peers, from samples of their Python stacks in a requested window.

A sample stands for the pause before it and for the time that the thread was in C until it could answer, without stalls
for communication: the peers of a slow rank wait there. Peers are ranks of one pipeline stage on the same mesh axes. A
line is reported if a rank spends significantly more time in it than each of its peers: the mean difference over steps
is at least SIGNIFICANT times its standard error, and more in few steps.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePath

import numpy as np

from traincope.analysis.attribution.terms import ACTION_TERMS, COMPUTE, PHASE_TERMS, UNATTRIBUTED
from traincope.analysis.faults.stacks import Frame, Place, place_of
from traincope.analysis.stragglers.own_work import place
from traincope.arrays import Floats, Ints
from traincope.events import EARLY_STEPS, OPEN, Flag, Kind, Phase
from traincope.store import RankRecords
from traincope.store.job.training_code import LIBRARY, is_training
from traincope.store.segments.stack_samples import Site, StackSamples
from traincope.timeline import Timeline
from traincope.timeline.intervals.union import Union

SIGNIFICANT = 4.0
"""Standard errors in many steps; twice as many in MIN_STEPS. The thresholds here are ours."""
NO_CHANCE = 4096
"""Odds against the chance that one rank alone stands in a line in all steps in which one does, if any rank could. Work
in every second step differs from step to step by as much as it takes, so standard errors do not show it.
"""
MIN_STEPS = 6
"""Fewest steps that are compared: one block of steps with detail."""
MIN_SHARE = 0.02
"""Smallest part of the step time that is worth a line."""
RESOLUTION = 0.5
"""Pauses between samples that a line must take longer: where it began in a pause is unknown."""
MAX_PAUSE = 1.5
"""Longest pause before a request, in mean pauses. In a longer one, the sampling thread did not run."""
OF_ITSELF = 0.1
"""Largest share of a rank's time in a line that its peers spend there, if the line is work that only this rank does."""
OF_THE_CALL = 0.5
"""Smallest share of the largest difference that a call inside it must have, to be named in its place."""
OF_THE_LOOP = 0.9
"""Share of a rank's time in all other terms above which a call contains the training itself, and names no place."""
RECORDED_CALLS = frozenset({"__next__", "backward", "step", "zero_grad", "_wrapped_call_impl", "_call_impl"})
"""Functions of torch whose time has terms of its own. A sample stands also for the pause before it, so one at their
begin or end may count as unattributed.
"""
TORCH = "/torch/"
ENOUGH_SAMPLES = 5
"""Fewest mean pauses of samples in unattributed time that name a line of it: what probes leave out is of many kinds."""
OWN = "/traincope/record/"
"""Part of the paths of the recorder's hooks, which call what the training called."""
SLEEP = "time.sleep"
LOCAL = "<locals>."
"""Part of the qualified names of functions that functions make, as decorators do."""
MAX_LINES = 3
"""Most lines of a window."""


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
    """A line of code in which a rank spends more time than each of its peers. Times are per step."""

    rank: int
    line: Line
    ns: int
    """Mean time of the rank in the line, per step."""
    peers_ns: int
    """The largest such time of a peer."""
    excess_ratio: float | None = None
    """Share of the time that the rank had more than each of its peers in these steps, outside of communication, that is
    in the line; None if it had no more.
    """

    @property
    def is_its_own(self) -> bool:
        """True if the line is work that only this rank does. A line in which all stand may only run slower here."""
        return self.peers_ns <= OF_ITSELF * self.ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledWindow:
    """Samples of a window, compared between ranks."""

    first_step: int
    last_step: int
    """First and last step with detail on all of its ranks."""
    steps: int
    """Number of such steps."""
    ranks: tuple[int, ...]
    """Ranks that sampled their stacks."""
    slow: tuple[SlowCode, ...]
    """The largest differences first; empty if no rank differs significantly."""
    early: bool = False
    """True for the first steps of a run, in which no request was made: they show where a rank's Python stands, and say
    nothing about the rest of the run.
    """


_Named = tuple[str, str, str, str]
"""Site, function, called function and module of a line."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    rank: RankRecords
    samples: StackSamples


def slow_code(timeline: Timeline) -> tuple[SampledWindow, ...]:
    """Compare the ranks of each window in which at least two sampled their stacks. What was sampled without a request
    is left out if no rank differs.
    """
    places = {rank.rank: place(rank) for rank in timeline.ranks}
    found = [_Sampled(rank, samples) for rank in timeline.run.ranks for samples in rank.stack_samples()]
    found = sorted((each for each in found if each.rank.rank in places), key=lambda each: each.samples.first_step)
    windows = (tuple(each) for _, each in groupby(found, key=lambda each: each.samples.first_step))
    compared = [
        window
        for each in windows
        if len(each) > 1
        and (window := _compared(each, places)) is not None
        and (window.slow or any(one.samples.requested for one in each) or window.first_step in EARLY_STEPS)
    ]
    requests = timeline.run.requests
    return tuple(
        replace(window, early=not any(request.stacks and request.covers(window.first_step) for request in requests))
        if window.first_step in EARLY_STEPS
        else window
        for window in compared
    )


def sampled_steps(rank: RankRecords) -> set[int]:
    """Numbers of the complete steps with detail in which the rank sampled its stacks, but not as they were long:
    such steps stand for no others.
    """
    found = (samples for samples in rank.stack_samples() if not samples.of_long_steps)
    return {step for samples in found for step in _detailed_steps(_Sampled(rank, samples))}


def line_within(rank: RankRecords, term: str, steps: Sequence[int]) -> Line | None:
    """Return the line of the training's code in which a rank's samples of these steps stand within a ledger term: the
    innermost one, or call, with most of their time. None without such samples, or if all that the rank does is in it.
    Unattributed time needs `ENOUGH_SAMPLES`.
    """
    numbers = np.array(sorted(steps), dtype=np.int64)
    times, calls = _summed(rank, numbers, _line), _summed(rank, numbers, _calls)
    elsewhere_ns = sum(total_ns for line, total_ns in times.items() if line.term != term)
    in_other_terms: dict[Line, float] = defaultdict(float)
    for line, total_ns in calls.items():
        in_other_terms[replace(line, term=term, module="")] += total_ns if line.term != term else 0.0
    within_ns = sum(total_ns for line, total_ns in times.items() if line.term == term)
    pause_ns = max((samples.interval_ns for samples in rank.stack_samples()), default=0)
    if term == UNATTRIBUTED and within_ns < ENOUGH_SAMPLES * pause_ns:
        return None
    most = [
        (total_ns, line)
        for line, total_ns in {**calls, **times}.items()
        if line.term == term
        and total_ns >= max(OF_THE_CALL * within_ns, 1.0)
        and (line in times or in_other_terms[replace(line, module="")] <= OF_THE_LOOP * elsewhere_ns)
    ]
    return min(most, key=lambda each: (each[0], each[1] not in times))[1] if most else None


def python_in_compute(rank: RankRecords) -> tuple[Line, float] | None:
    """Return the training's line below which Python's own modules run, or it sleeps, for most of such time within the
    terms of compute, and that time as a share of the steps whose stacks were sampled early or in a few blocks. None
    without such samples: torch's time in these terms is no such time.
    """
    samples = [each for each in rank.stack_samples() if not each.of_long_steps]
    steps = np.array(sorted(sampled_steps(rank)), dtype=np.int64)
    if not len(steps):
        return None
    times: dict[Line, float] = defaultdict(float)
    for each in samples:
        for line, ns in _times_ns(_Sampled(rank, each), steps, _line_of_python).items():
            if line.term in COMPUTE:
                times[replace(line, module="", term="")] += float(ns.sum())
    if not times:
        return None
    line = max(times, key=lambda each: times[each])
    is_enough = times[line] >= ENOUGH_SAMPLES * max(each.interval_ns for each in samples)
    return (line, times[line] / float(_lengths_ns(rank, steps).sum())) if is_enough else None


def _line_of_python(stack: Sequence[Site]) -> tuple[_Named, ...]:
    """The same as `_line`, of a stack that ends in Python's own modules or sleeps; otherwise none."""
    inside = bool(stack) and (LIBRARY.search(stack[0].path) is not None or stack[0].called == SLEEP)
    return _line(stack) if inside else ()


def _summed(
    rank: RankRecords, steps: Ints, lines_of: Callable[[Sequence[Site]], Collection[_Named]]
) -> Mapping[Line, float]:
    """Return the ns of each line in all samples of a rank. A call with a term of its own is in no unattributed time."""
    times: dict[Line, Floats] = defaultdict(lambda: np.zeros(len(steps)))
    for samples in rank.stack_samples():
        recorded = set().union(*map(_recorded, samples.stacks))
        for line, ns in _times_ns(_Sampled(rank, samples), steps, lines_of).items():
            if line.term != UNATTRIBUTED or line.called not in recorded:
                times[line] = times[line] + ns
    return {line: float(ns.sum()) for line, ns in _over_modules({rank.rank: times})[rank.rank].items()}


def _recorded(stack: Sequence[Site]) -> set[str]:
    """Functions in a stack that are recorded: torch's, and those of libraries around them with such a name, but not the
    `step` of an environment.
    """
    calls = [site for site in stack if site.function.rpartition(".")[2] in RECORDED_CALLS]
    inner = next((at for at, site in enumerate(calls) if TORCH in site.path), len(calls))
    return {site.function for site in calls[inner:]}


def _compared(sampled: Sequence[_Sampled], places: Mapping[int, object]) -> SampledWindow | None:
    steps = np.array(sorted(set.intersection(*(_detailed_steps(each) for each in sampled))), dtype=np.int64)
    if not len(steps):
        return None
    step_ns = max(float(np.mean(_lengths_ns(each.rank, steps))) for each in sampled)
    groups: dict[object, list[_Sampled]] = defaultdict(list)
    for each in sampled if len(steps) >= MIN_STEPS else ():
        groups[places[each.rank.rank]].append(each)
    least_ns = max(MIN_SHARE * step_ns, RESOLUTION * max(each.samples.interval_ns for each in sampled))
    slow = [code for group in groups.values() for code in _with_excess(group, steps, least_ns)]
    return SampledWindow(
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        steps=len(steps),
        ranks=tuple(each.rank.rank for each in sampled),
        slow=tuple(sorted(slow, key=lambda code: code.peers_ns - code.ns)[:MAX_LINES]),
    )


def _with_excess(group: Sequence[_Sampled], steps: Ints, least_ns: float) -> Iterator[SlowCode]:
    slow = _slow(group, steps, at_least_ns=least_ns)
    totals = {each.rank.rank: _total_ns(each, steps) for each in group} if slow else {}
    for code in slow:
        excess_ns = totals[code.rank] - max(ns for rank, ns in totals.items() if rank != code.rank)
        ratio = (code.ns - code.peers_ns) / excess_ns if excess_ns > 0 else None
        yield replace(code, excess_ratio=None if ratio is None else round(ratio, 3))


def _total_ns(sampled: _Sampled, steps: Ints) -> float:
    """Mean time of a rank per step, outside of communication."""
    return sum(float(times.mean()) for times in _times_ns(sampled, steps, _line).values())


def _slow(group: Sequence[_Sampled], steps: Ints, *, at_least_ns: float) -> list[SlowCode]:
    """The lines of peers that differ. Work that is spread over many short lines shows in the innermost call of it."""
    times = _over_modules({each.rank.rank: _times_ns(each, steps, _line) for each in group})
    lines = list(_differences(times, at_least_ns=at_least_ns))
    if lines:
        return lines
    times = _over_modules({each.rank.rank: _times_ns(each, steps, _calls) for each in group})
    calls = list(_differences(times, at_least_ns=at_least_ns))
    most_ns = max((call.ns - call.peers_ns for call in calls), default=0)
    whole = [call for call in calls if call.ns - call.peers_ns >= OF_THE_CALL * most_ns]
    return [min(whole, key=lambda call: call.ns)] if whole else []


def _over_modules(times: Mapping[int, Mapping[Line, Floats]]) -> Mapping[int, Mapping[Line, Floats]]:
    """Add up the times of each line over the model's modules, unless one module has most of them: a hook of all layers
    is one piece of work.
    """
    totals: dict[Line, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for of_rank in times.values():
        for line, ns in of_rank.items():
            totals[replace(line, module="")][line.module] += float(ns.sum())
    spread = {line for line, of in totals.items() if max(of.values()) < OF_THE_CALL * sum(of.values())}
    summed: dict[int, dict[Line, Floats]] = {rank: {} for rank in times}
    for rank, of_rank in times.items():
        for line, ns in of_rank.items():
            place = whole if (whole := replace(line, module="")) in spread else line
            summed[rank][place] = summed[rank][place] + ns if place in summed[rank] else ns
    return summed


def _differences(times: Mapping[int, Mapping[Line, Floats]], *, at_least_ns: float) -> Iterator[SlowCode]:
    """Yield the lines in which the slowest rank of a group spends significantly more time than the next slowest."""
    if len(times) < 2:
        return
    for line in dict.fromkeys(line for of in times.values() for line in of):
        count = len(next(of[line] for of in times.values() if line in of))
        none = np.zeros(count)
        by_rank = sorted(((of.get(line, none), rank) for rank, of in times.items()), key=lambda each: -each[0].mean())
        (most_ns, rank), (next_ns, _) = by_rank[:2]
        excess_ns = most_ns - next_ns
        error_ns = float(excess_ns.std(ddof=1)) / count**0.5
        needed_ns = SIGNIFICANT * (1 + MIN_STEPS / count) * error_ns
        is_its_own = next_ns.mean() <= OF_ITSELF * most_ns.mean()
        is_no_chance = is_its_own and len(times) ** max(int(np.count_nonzero(most_ns)) - 1, 0) >= NO_CHANCE
        if excess_ns.mean() >= (at_least_ns if is_no_chance else max(at_least_ns, needed_ns)):
            yield SlowCode(rank=rank, line=line, ns=round(most_ns.mean()), peers_ns=round(next_ns.mean()))


def _times_ns(
    sampled: _Sampled, steps: Ints, lines_of: Callable[[Sequence[Site]], Collection[_Named]]
) -> Mapping[Line, Floats]:
    """Sum the time of each line in each of the steps, without stalls for communication."""
    samples, main = sampled.samples, sampled.rank.thread("main")
    asked_ns = samples.times_ns - samples.waited_ns
    longest_ns = round(MAX_PAUSE * samples.interval_ns)
    from_ns = np.maximum(asked_ns - longest_ns, np.append(samples.times_ns[:1], samples.times_ns[:-1]))
    middle_ns = (from_ns + samples.times_ns) // 2
    bounds = main[(main["kind"] == Kind.STEP) & np.isin(main["step"], steps)]
    order = np.argsort(bounds["step"])
    starts_ns, ends_ns = bounds["start_ns"][order], bounds["end_ns"][order]
    if not len(starts_ns):
        return {}
    step = np.searchsorted(starts_ns, middle_ns, side="right") - 1
    chosen = (step >= 0) & (middle_ns < ends_ns[np.maximum(step, 0)])
    stalls = main[(main["kind"] == Kind.STALL) & (main["end_ns"] != OPEN)]
    stalled = Union.of(stalls["start_ns"], stalls["end_ns"])
    weights_ns = samples.times_ns - from_ns - stalled.covered_ns(from_ns, samples.times_ns)
    terms = _terms(sampled.rank, middle_ns)
    lines = [lines_of(stack) for stack in samples.stacks]
    times: dict[Line, Floats] = defaultdict(lambda: np.zeros(len(steps)))
    for at in np.flatnonzero(chosen).tolist():
        for site, function, called, module in lines[samples.stack[at]]:
            named = Line(site=site, function=function, called=called, module=module, term=terms[at])
            times[named][step[at]] += weights_ns[at]
    return times


def _line(stack: Sequence[Site]) -> tuple[_Named, ...]:
    """The innermost line of the training's own code; none in communication, or without frames."""
    frames = _frames(stack)
    at = next((number for number, frame in enumerate(frames) if frame.is_training), 0)
    return (_named(stack, at),) if frames else ()


def _calls(stack: Sequence[Site]) -> Collection[_Named]:
    """Every line of the training's own code at which another function was called, the innermost first, which is named
    of lines with the same time; none in communication.
    """
    frames = _frames(stack)
    return dict.fromkeys(_named(stack, at) for at, frame in enumerate(frames) if at and frame.is_training)


def _frames(stack: Sequence[Site]) -> tuple[Frame, ...]:
    """Frames of a stack; none in communication."""
    frames = tuple(Frame(path=site.path, line=site.line, function=site.function) for site in stack)
    return () if frames and place_of(frames) is Place.COMMUNICATION else frames


def _named(stack: Sequence[Site], at: int) -> _Named:
    site = stack[at]
    inner = [each for each in reversed(stack[:at]) if OWN not in each.path]
    called = next((each.function for each in inner if not _wraps(each)), inner[0].function if inner else site.called)
    return f"{PurePath(site.path).name}:{site.line}", site.function, called, site.module


def _wraps(site: Site) -> bool:
    """True for a library's wrapper around a function, such as that of `torch.no_grad()`."""
    return LOCAL in site.function and not is_training(site.path)


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
