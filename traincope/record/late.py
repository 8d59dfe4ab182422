"""Patching a module of torch when, and only if, the training imports it."""

import sys
from collections.abc import Callable
from types import ModuleType

from traincope.record.recorder import Recorder


class WhenImported:
    """Calls `patch` with a module once it is there: at once, or between two steps after its import."""

    def __init__(self, module: str, patch: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._patch = patch
        self._watching = False

    def watch(self, recorder: Recorder) -> None:
        self._watching = True
        self._look()
        if self._watching:
            recorder.between_steps(self._look)

    def stop(self) -> None:
        self._watching = False

    def _look(self) -> None:
        if self._watching and self._module in sys.modules:
            self._watching = False
            self._patch(sys.modules[self._module])
