"""Findings about tools of the training that slow it down while they look into it."""

from collections.abc import Collection

from traincope.analysis.confidence import MEDIUM
from traincope.analysis.ledger.debug_tools import Debugged, debugged_ranks
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, Weighted, with_gain
from traincope.events import DebugTool
from traincope.timeline import Timeline
from traincope.units import count

ADVICE = {
    DebugTool.PROFILER: (
        "Let the profiler's schedule record few steps (`schedule(wait=100, warmup=1, active=3, repeat=1)`), without "
        "with_stack, record_shapes and profile_memory, or turn it off"
    ),
    DebugTool.ANOMALIES: (
        "Turn off detect_anomaly() and set_detect_anomaly(True): they keep the stack of each operation, and look for "
        "NaN in each gradient"
    ),
    DebugTool.PROFILE_FUNCTION: (
        "Turn off the profiler (cProfile, sys.setprofile), which runs at each call; `traincope profile RUN --stacks 0` "
        "samples a training at little cost"
    ),
    DebugTool.TRACE_FUNCTION: "Turn off the debugger or coverage (sys.settrace), which runs at each line",
    DebugTool.ALLOCATIONS: "Stop tracemalloc (PYTHONTRACEMALLOC), which keeps the stack of each object",
}
UNSET, TURN_OFF = "Unset {}", "Turn it off"
SOME_TOOL = "a debugging tool"
"""Its name was not recorded."""


def debugging(timeline: Timeline, late: Collection[int]) -> Weighted:
    """One finding about the ranks on which tools were on, by the one that they cost most.

    `late`: the named stragglers. If the tools are on only there, they are a cause in the findings about them.
    """
    found = debugged_ranks(timeline)
    if all(each.rank in late for each in found):
        return
    worst = max(found, key=lambda each: (each.cost_ns is None, each.gain_ratio or 0.0))
    if worst.gain_ratio is not None and worst.gain_ratio < MIN_SHARE:
        return
    everywhere = len(found) == len(timeline.ranks)
    yield (
        worst.gain_ratio or 0.0,
        Finding(
            kind=FindingKind.DEBUGGING,
            ranks=() if everywhere else tuple(each.rank for each in found),
            confidence=MEDIUM,
            evidence=with_tools(worst),
            advice=with_gain(f"{turn_off(worst)}.", worst.gain_ratio),
            estimated_gain_ratio=worst.gain_ratio,
        ),
    )


def with_tools(found: Debugged) -> str:
    """Return `torch's profiler is on in 44 of 71 steps: these ... take 61.0 ms on average, the others 30.2 ms`."""
    tools, are = " and ".join(found.tools) or SOME_TOOL, "are" if len(found.tools) > 1 else "is"
    on = f"{tools} {are} on in {found.steps:,} of {count(found.of, 'step')}"
    if found.without_ns is None:
        return f"{on}: too few steps are free of that to tell what it costs"
    return (
        f"{on}: these and the steps next to them take {found.with_ns / 1e6:.1f} ms on average, the others "
        f"{found.without_ns / 1e6:.1f} ms"
    )


def turn_off(found: Debugged) -> str:
    """Return how to turn the tools off, without a full stop."""
    known = {tool.value: advice for tool, advice in ADVICE.items()}
    return ". ".join(known.get(tool, UNSET.format(tool.partition("=")[0])) for tool in found.tools) or TURN_OFF
