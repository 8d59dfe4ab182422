"""Tools that slow a training down: the steps in which they are on are marked, with the name of the tool."""

import cProfile
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import traincope
from traincope import open_run
from traincope.analysis import analyze
from traincope.analysis.ledger.debug_tools import debugged_ranks
from traincope.events import DebugTool

STEPS, ON = 18, range(6, 12)

Tool = Callable[[], AbstractContextManager[Any]]


@contextmanager
def set_to(switch: Callable[[Any], object], on: object) -> Any:
    switch(on)
    try:
        yield
    finally:
        switch(None)


@contextmanager
def allocations() -> Any:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


TOOLS: dict[DebugTool, Tool] = {
    DebugTool.PROFILER: lambda: profile(activities=[ProfilerActivity.CPU], with_stack=True),
    DebugTool.ANOMALIES: torch.autograd.detect_anomaly,
    DebugTool.PROFILE_FUNCTION: cProfile.Profile,
    DebugTool.TRACE_FUNCTION: lambda: set_to(sys.settrace, lambda *_: None),
    DebugTool.ALLOCATIONS: allocations,
}


def trained(out: Path, tool: Tool, **options: Any) -> Any:
    """Timeline of a training in which the tool is on around forward and backward of the steps `ON`."""
    with traincope.run(out, agent=False, **options) as run:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for at in range(STEPS):
            with tool() if at in ON else nullcontext():
                model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step()
    return open_run(out)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("tool", TOOLS)
def test_the_steps_with_a_tool_are_marked_and_it_is_named(tmp_path: Path, tool: DebugTool) -> None:
    timeline = trained(tmp_path / "run", TOOLS[tool])
    assert [step.number for step in timeline.ranks[0].steps if step.debugged] == [*ON]
    (found,) = debugged_ranks(timeline)
    assert (found.rank, found.tools, found.steps, found.of) == (0, (tool.value,), len(ON), STEPS - 1)


def test_a_training_without_tools_has_no_such_steps(tmp_path: Path) -> None:
    timeline = trained(tmp_path / "run", nullcontext)
    assert not any(step.debugged for step in timeline.ranks[0].steps)
    assert debugged_ranks(timeline) == ()
    assert all(finding.kind != "debugging" for finding in analyze(timeline).verdict)


def test_our_own_trace_of_a_step_is_no_tool_of_the_training(tmp_path: Path) -> None:
    """At level 3, step 10 is traced."""
    timeline = trained(tmp_path / "run", nullcontext, level=3)
    assert "kernel window" in timeline.ranks[0].names
    assert not any(step.debugged for step in timeline.ranks[0].steps)
