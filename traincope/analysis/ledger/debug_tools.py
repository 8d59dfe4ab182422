"""Tools of the training that slow down its steps while they look into it, and the time that their steps show it by."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traincope.arrays import Floats
from traincope.events import DEBUG_TOOL, DebugTool, Kind, Phase
from traincope.store import RankRecords
from traincope.store.segments.segments import recorder_events
from traincope.timeline import RankTimeline, Timeline
from traincope.timeline.intervals.union import Union

MIN_STEPS = 4
"""Fewest steps with a tool, and fewest without, that are compared."""
STANDARD_ERRORS = 3.0
"""Difference of the means, in its standard errors, from which steps are longer. Ours."""
BY_ENVIRONMENT = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
}
"""Variable -> its value that slows down every step: the host waits for each kernel; torch checks each collective by
further ones.
"""
STOPS = (Phase.CHECKPOINT_STALL, Phase.EVALUATION, Phase.COMPILE)
"""Work in few steps, often the same as those that are profiled: at every hundredth, say."""
OF_GPUS, OF_SEVERAL_RANKS = ("CUDA_LAUNCH_BLOCKING",), ("TORCH_DISTRIBUTED_DEBUG",)
"""Those without an effect on CPUs, and on a rank alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Debugged:
    """Tools that were on in steps of one rank. Its first step is not counted. Steps with `STOPS` are not compared."""

    rank: int
    tools: tuple[str, ...]
    """Names of `DebugTool`, and variables with their value."""
    steps: int
    """Steps with a tool."""
    of: int
    """All steps."""
    with_ns: float
    """Mean length of a step with a tool, or next to one: a tool starts and writes what it saw between steps."""
    without_ns: float | None
    """Mean length of the others; None if too few are left."""
    cost_ns: float | None
    """Time that the tools cost per step, mean over all steps: 0 if `with_ns` is not clearly longer; None if too few
    steps are without.
    """
    gain_ratio: float | None
    """The same as a share of step time."""

    @property
    def ratio(self) -> float:
        """Share of the steps with a tool."""
        return self.steps / self.of


def debugged_ranks(timeline: Timeline) -> tuple[Debugged, ...]:
    """Return the ranks on which tools were on, in order."""
    records = {rank.rank: rank for rank in timeline.run.ranks}
    variables, stopped = tuple(_variables(timeline)), frozenset().union(*map(_stopped, timeline.ranks))
    found = (_debugged(rank, records[rank.rank], variables, stopped) for rank in timeline.ranks)
    return tuple(each for each in found if each is not None)


def _variables(timeline: Timeline) -> Iterator[str]:
    set_to: Mapping[str, str] = timeline.run.info.environment
    on_gpus = any("count" in rank.info.device for rank in timeline.run.ranks)
    is_several = timeline.run.info.world_size > 1
    for name, value in BY_ENVIRONMENT.items():
        has_effect = (on_gpus or name not in OF_GPUS) and (is_several or name not in OF_SEVERAL_RANKS)
        if set_to.get(name, "").upper() == value and has_effect:
            yield f"{name}={value}"


def _stopped(rank: RankTimeline) -> frozenset[int]:
    """Numbers of the steps with `STOPS`, on which all ranks wait; empty if they are in most steps."""
    stops = rank.main[(rank.main["kind"] == Kind.PHASE) & np.isin(rank.main["phase"], STOPS)]
    stops = stops[stops["end_ns"] > stops["start_ns"]]
    starts_ns, ends_ns = (np.array([getattr(step, name) for step in rank.steps]) for name in ("start_ns", "end_ns"))
    is_stopped = Union.of(stops["start_ns"], stops["end_ns"]).covered_ns(starts_ns, ends_ns) > 0
    if not len(stops) or 2 * is_stopped.sum() > len(is_stopped):
        return frozenset()
    return frozenset(step.number for step, is_so in zip(rank.steps, is_stopped, strict=True) if is_so)


def _debugged(
    rank: RankTimeline, records: RankRecords, variables: tuple[str, ...], stopped: frozenset[int]
) -> Debugged | None:
    steps = rank.steps[1:]
    lengths_ns = np.array([step.length_ns for step in steps], dtype=np.float64)
    on = np.array([step.debugged or bool(variables) for step in steps], dtype=bool)
    if int(on.sum()) < MIN_STEPS:
        return None
    beside = on.copy()
    beside[1:] |= on[:-1]
    beside[:-1] |= on[1:]
    usual = np.array([step.number not in stopped for step in steps], dtype=bool)
    with_ns, without_ns = lengths_ns[beside & usual], lengths_ns[~beside & usual]
    if len(with_ns) < MIN_STEPS:
        return None
    comparable = len(without_ns) >= MIN_STEPS
    longer_ns = float(with_ns.mean() - without_ns.mean()) if comparable else 0.0
    if comparable and longer_ns < STANDARD_ERRORS * np.hypot(_error(with_ns), _error(without_ns)):
        longer_ns = 0.0
    cost_ns = longer_ns * int(beside.sum()) / len(steps)
    return Debugged(
        rank=rank.rank,
        tools=(*_tools(rank, records), *variables),
        steps=int(on.sum()),
        of=len(steps),
        with_ns=float(with_ns.mean()),
        without_ns=float(without_ns.mean()) if comparable else None,
        cost_ns=cost_ns if comparable else None,
        gain_ratio=cost_ns / float(lengths_ns.mean()) if comparable else None,
    )


def _error(values: Floats) -> float:
    """Standard error of the mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _tools(rank: RankTimeline, records: RankRecords) -> Iterator[str]:
    """Names of the tools by the recorder's events."""
    numbers = [number for number, name in enumerate(rank.names) if name == DEBUG_TOOL]
    noted: set[object] = set()
    for thread in rank.threads.values() if numbers else ():
        events = recorder_events(thread)
        chosen = events[np.isin(events["name"], numbers)]
        noted |= {records.details.get(int(event["group"]), {}).get("of") for event in chosen}
    yield from (tool.value for tool in DebugTool if tool.value in noted)
