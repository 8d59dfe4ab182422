"""Marks that a compute stream would reach in a Kineto trace, and their difference from a ledger of the same steps.

The reader of the trace shares no code with traincope's importer. It expects annotations: `ProfilerStep#N` where step N
of the run begins, and `forward`, `backward` and `optimizer` around these phases.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from traincope.analysis.ledger.ledger import RankLedger
from traincope.errors import DataError

COMPUTE_STREAM = 7
"""CUPTI's number of the default stream."""
STEP = "ProfilerStep#"
PHASES = ("forward", "backward", "optimizer")
EXPOSED = "exposed communication"
EXPOSED_TERMS = ("exposed_wait", "exposed_transfer", "exposed_memory")
"""On one rank a collective is a copy. Only traces show exposed copies."""
COLLECTIVE = "record_param_comms"
WAIT = "wait"
"""`record_param_comms` has this name around the wait for a collective."""
PARTS = ("step", *PHASES, EXPOSED)
WORKS = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
WAITS = ("cudaStreamWaitEvent", "cuStreamWaitEvent")

Steps = dict[int, dict[str, int]]
"""Step -> ns of the `step`, of each of its phases without stalls, and of its exposed communication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The largest difference of one part of a step between a ledger and a trace, over steps and ranks."""

    part: str
    ledger_ns: int
    """Mean per step."""
    trace_ns: int
    ratio: float
    """The largest |ledger - trace| as a share of the step in the trace."""
    rank: int
    """Rank and step of the largest difference."""
    step: int


def ledger_steps(ledger: RankLedger) -> Steps:
    """Return the times of the counted steps of one rank: those with detail, without the warm-up."""
    return {
        number: {"step": int(ledger.wall_ns[at]), EXPOSED: _sum(ledger, at, *EXPOSED_TERMS)}
        | {phase: _sum(ledger, at, phase) for phase in PHASES}
        for at, number in enumerate(ledger.numbers.tolist())
        if ledger.counted[at]
    }


def _sum(ledger: RankLedger, at: int, *terms: str) -> int:
    """Sum terms, over the axes of the mesh, in ns."""
    return sum(int(ns[at]) for term, ns in ledger.terms.items() if term.split("[")[0] in terms and ns is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    launched_ns: int
    start_ns: int
    end_ns: int
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """An annotation or a call on the host."""

    name: str
    begin_ns: int
    end_ns: int


class TracedMarks:
    """The instants at which the compute stream would reach marks, by the launches, works and waits of a trace."""

    def __init__(self, trace: Path) -> None:
        """Raise DataError if the file is not a trace of a GPU."""
        try:
            self._read(json.loads(trace.read_text())["traceEvents"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{trace.name} is not a trace of a GPU ({type(error).__name__}: {error})") from error

    def _read(self, events: list[dict[str, Any]]) -> None:
        calls = {each["args"]["correlation"]: _span(each) for each in events if each.get("cat") in CALLS}
        works = sorted(
            (
                _work(each, calls)
                for each in events
                if each.get("cat") in WORKS and each["args"]["correlation"] in calls
            ),
            key=lambda work: (work.launched_ns, work.start_ns),
        )
        self.kernels = [each["name"] for each in events if each.get("cat") == "kernel"]
        self.collectives_ns = [
            _ns(each["ts"])
            for each in events
            if each.get("name") == COLLECTIVE and each["args"].get("Collective name") != WAIT
        ]
        """Time at which the host issued each collective."""
        self.annotations = sorted(
            (_span(each) for each in events if each.get("cat") == "user_annotation"), key=lambda span: span.begin_ns
        )
        self._works = [work for work in works if work.stream == COMPUTE_STREAM]
        if not self._works:
            raise ValueError("its compute stream has no work")
        self._others = [work for work in works if work.stream != COMPUTE_STREAM]
        self._launches_ns = [work.launched_ns for work in self._works]
        self._latency_ns = min(work.start_ns - work.launched_ns for work in self._works)
        waits = sorted((call for call in calls.values() if call.name in WAITS), key=lambda call: call.begin_ns)
        self.waits = [wait for wait in waits if _next_stream(wait, works) == COMPUTE_STREAM]
        """Waits of the compute stream. A trace does not name the stream: it is that of the next work."""

    def reached_ns(self, queued_ns: int) -> int:
        """Return when the compute stream reaches a mark that the host queues at `queued_ns`.

        It is the latest of three: the launch and its shortest latency; the end of the last work launched before; and,
        if the stream waits in between, the last end of work on other streams before the next work starts.
        """
        at = bisect_left(self._launches_ns, queued_ns)
        launched_ns = self._launches_ns[at - 1] if at else -1
        ends = [queued_ns + self._latency_ns, *(work.end_ns for work in self._works[max(at - 1, 0) : at])]
        waits = [wait.begin_ns for wait in self.waits if launched_ns < wait.begin_ns < queued_ns]
        if waits:
            awaited = [work.end_ns for work in self._others if work.launched_ns < waits[-1]]
            following = self._works[at : at + 1]
            ends += [end_ns for end_ns in awaited if not following or end_ns <= following[0].start_ns]
        return max(ends)

    def between_ns(self, span: _Span) -> int:
        """Return the time between marks at the begin and the end of a span of the host."""
        return self.reached_ns(span.end_ns) - self.reached_ns(span.begin_ns)


def traced_steps(marks: TracedMarks) -> Steps:
    """Return what marks would show of every step in the trace that another one follows."""
    return {number: _traced(marks, step) for number, step in _step_spans(marks).items()}


def traced_collectives(marks: TracedMarks) -> dict[int, int]:
    """Return the number of collectives that the host issued in each step in the trace that another one follows."""
    return {
        number: sum(step.begin_ns <= at_ns < step.end_ns for at_ns in marks.collectives_ns)
        for number, step in _step_spans(marks).items()
    }


def _step_spans(marks: TracedMarks) -> dict[int, _Span]:
    begins = [each for each in marks.annotations if each.name.startswith(STEP)]
    return {
        int(step.name.removeprefix(STEP)): _Span(name=step.name, begin_ns=step.begin_ns, end_ns=following.begin_ns)
        for step, following in pairwise(begins)
    }


def _traced(marks: TracedMarks, step: _Span) -> dict[str, int]:
    waits = [wait for wait in marks.waits if step.begin_ns <= wait.begin_ns < step.end_ns]
    parts = {"step": marks.between_ns(step), EXPOSED: sum(map(marks.between_ns, waits))} | dict.fromkeys(PHASES, 0)
    for phase in marks.annotations:
        if phase.name in PHASES and step.begin_ns <= phase.begin_ns < step.end_ns:
            inside = [wait for wait in waits if phase.begin_ns <= wait.begin_ns < phase.end_ns]
            parts[phase.name] += marks.between_ns(phase) - sum(map(marks.between_ns, inside))
    return parts


def differences(
    ledgers: Mapping[int, Steps], traces: Mapping[int, Steps], *, parts: Sequence[str] = PARTS
) -> tuple[Difference, ...]:
    """Compare the steps of each rank's ledger with those of its trace, part by part.

    Raises DataError if the ledger has no step, or if the trace lacks one.
    """
    missing = [
        f"step {number} of rank {rank}"
        for rank, steps in ledgers.items()
        for number in steps
        if number not in traces[rank]
    ]
    if missing or not any(ledgers.values()):
        raise DataError(f"the trace lacks {missing[0]}" if missing else "the ledger has no step")
    return tuple(_difference(part, ledgers, traces) for part in parts)


def _difference(part: str, ledgers: Mapping[int, Steps], traces: Mapping[int, Steps]) -> Difference:
    places = [(rank, number) for rank, steps in ledgers.items() for number in steps]
    pairs = [(ledgers[rank][number][part], traces[rank][number][part]) for rank, number in places]
    ratios = [
        abs(ledger_ns - trace_ns) / traces[rank][number]["step"]
        for (ledger_ns, trace_ns), (rank, number) in zip(pairs, places, strict=True)
    ]
    worst = max(range(len(places)), key=ratios.__getitem__)
    return Difference(
        part=part,
        ledger_ns=round(mean(ledger_ns for ledger_ns, _ in pairs)),
        trace_ns=round(mean(trace_ns for _, trace_ns in pairs)),
        ratio=ratios[worst],
        rank=places[worst][0],
        step=places[worst][1],
    )


def _span(event: dict[str, Any]) -> _Span:
    begin_ns = _ns(event["ts"])
    return _Span(name=event["name"], begin_ns=begin_ns, end_ns=begin_ns + _ns(event["dur"]))


def _work(event: dict[str, Any], calls: dict[int, _Span]) -> _Work:
    span, place = _span(event), event["args"]
    launched_ns = calls[place["correlation"]].begin_ns
    return _Work(launched_ns=launched_ns, start_ns=span.begin_ns, end_ns=span.end_ns, stream=place["stream"])


def _next_stream(wait: _Span, works: list[_Work]) -> int | None:
    """Return the stream of the first work launched after a wait."""
    return next((work.stream for work in works if work.launched_ns > wait.begin_ns), None)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1e3)
