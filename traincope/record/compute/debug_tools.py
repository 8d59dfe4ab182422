"""Hook on tools of the training that slow it down while they look into it, and are forgotten easily.

At the end of each backward, in the thread that called it, all of them are on that are on in the step at all: torch's
anomaly detection is often on only around forward and backward.
"""

import _tracemalloc
import sys
from collections.abc import Callable

from traincope.events import DEBUG_TOOL, DebugTool
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.torch_private import profiles_itself
from traincope.record.session.recorder import Recorder


class DebugTools:
    """Hook on nothing in torch: it is called by `Phases`."""

    name = "debug_tools"
    level = 1

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._noted: set[DebugTool] = set()

    def install(self, recorder: Recorder) -> None:
        """Raises ImportError if this torch has no profiler."""
        self._recorder = recorder
        self._is_on = _tests()
        self._phases.after_backward(self._look)

    def remove(self) -> None:
        """`Phases` forgets its listeners."""

    def _look(self) -> None:
        tool = next((tool for tool, is_on in self._is_on if is_on()), None)
        if tool is None:
            return
        self._recorder.steps.debugged()
        if tool not in self._noted:
            self._noted.add(tool)
            self._recorder.event(DEBUG_TOOL, {"of": tool.value})


def _tests() -> tuple[tuple[DebugTool, Callable[[], object]], ...]:
    """Tests of the tools. Each takes some 50 ns. The first that is on counts: torch's profiler sets a profile function
    itself if it records stacks.
    """
    import torch

    return (
        (DebugTool.PROFILER, profiles_itself()),
        (DebugTool.ANOMALIES, torch.is_anomaly_enabled),
        (DebugTool.PROFILE_FUNCTION, sys.getprofile),
        (DebugTool.TRACE_FUNCTION, sys.gettrace),
        (DebugTool.ALLOCATIONS, _tracemalloc.is_tracing),
    )
