"""Patches for a module of torch that apply when, and only if, the training imports it."""

import sys
from collections.abc import Callable
from types import ModuleType

Listener = Callable[[], None]


class WhenImported:
    """Call `patch` with a module: at once if it is imported, otherwise between two steps after its import."""

    def __init__(self, module: str, patch: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._patch = patch
        self._watching = False
        self._forget: Callable[[Listener], None] | None = None

    def watch(self, after_imports: Callable[[Listener], None], *, forget: Callable[[Listener], None]) -> None:
        """Begin to watch. `after_imports` registers a listener for the time between two steps; `forget` removes it."""
        self._watching = True
        if not self._patch_if_imported():
            self._forget = forget
            after_imports(self.check)

    def stop(self) -> None:
        self._watching = False

    def check(self) -> None:
        """Patch the module if it is imported now."""
        if (not self._watching or self._patch_if_imported()) and self._forget is not None:
            self._forget(self.check)

    def _patch_if_imported(self) -> bool:
        if self._module not in sys.modules:
            return False
        self._watching = False
        self._patch(sys.modules[self._module])
        return True
