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
        if not self._found():
            self._recorder = recorder
            recorder.between_steps(self._look)

    def stop(self) -> None:
        self._watching = False

    def _look(self) -> None:
        if not self._watching or self._found():
            self._recorder.no_longer(self._look)

    def _found(self) -> bool:
        if self._module not in sys.modules:
            return False
        self._watching = False
        self._patch(sys.modules[self._module])
        return True
