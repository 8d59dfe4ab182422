"""The hooks of one run: install them, change the level, remove them.

Levels: 0 records steps and phases; 1 adds collectives, waits and pipeline actions; 2 adds modules; 3 adds kernel
windows. Writing a digit to the file `level` in the run directory changes the level of a running job.

Detail, everything above level 0, is recorded in windows of consecutive steps (`sampling.py`). It begins only where a
window begins: the counts that identify a collective across ranks begin there, and ranks see the file at different
steps.
"""

import logging
import sys
from typing import Protocol

from traincope.events import RECORDER_LEVEL
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.torch_private import hide_from_compiler
from traincope.record.session.recorder import Recorder
from traincope.record.session.sampling import BLOCK_STEPS, Sampling
from traincope.store.layout import LEVEL_FILE

logger = logging.getLogger(__name__)

DETAIL_LEVEL = 1
"""The lowest level with detail."""
MAX_LEVEL_CHARACTERS = 16
"""Number of characters read from the level file, which any user can write."""
ON = "on"
FAILED = "absent: it failed to install"
BY_LEVEL_FILE = f"requested by the file {LEVEL_FILE}"
INSTALL_ERRORS = (ImportError, AttributeError, RuntimeError, KeyError, TypeError, OSError)
"""Errors of a hook's `install` if this torch or this machine lacks the hooked part."""


def hide_from_compiler_once() -> None:
    """Hide the recorder's hooks from torch.compile. All guards run one code object, so one call is enough."""
    if "torch" in sys.modules:
        hide_from_compiler(guard(hide_from_compiler_once), calls_too=True)


class Hook(Protocol):
    """Observer of one thing in torch or Python.

    `install` raises if it cannot observe. Its message becomes the probe's state in `rank.json`, `remove` undoes the
    partial installation, and the run continues without the hook. `remove` restores exactly the earlier state.
    """

    name: str
    level: int
    """The lowest level at which the hook is on."""

    def install(self, recorder: Recorder) -> None: ...

    def remove(self) -> None: ...


class Probes:
    """Install and remove hooks. Every change is on the training thread, between steps."""

    def __init__(self, recorder: Recorder, hooks: tuple[Hook, ...], *, level: int, sampling: Sampling) -> None:
        self._recorder = recorder
        self._hooks = hooks
        self.on: list[Hook] = []
        """Installed hooks, in order of installation."""
        self._sampling = sampling
        self.level = level

    def install(self) -> None:
        self._recorder.detailed = self.level >= DETAIL_LEVEL
        guard(hide_from_compiler_once)()
        for hook in self._hooks:
            if hook.level > self.level:
                self._recorder.probes[hook.name] = f"off: needs level {hook.level}, this run records level {self.level}"
            elif hook not in self.on:
                guard(self._install)(hook)
        self._recorder.now_and_then(self._read_level_file)
        self._recorder.between_detailed_steps(self.check)

    def remove(self) -> None:
        """Remove all hooks, last first. torch is then as before."""
        while self.on:
            guard(self.on.pop().remove)()

    def check(self) -> None:
        """Between two steps, begin or end a window.

        Its first step only leads in: what is under way there began without a record.
        """
        recorder, step = self._recorder, self._recorder.shared.step
        while recorder.steps.not_judged:
            own_ns, wall_ns = recorder.steps.not_judged.popleft()
            self._sampling.add(own_ns=own_ns, wall_ns=wall_ns, detailed=recorder.detailed)
        leads_in = not recorder.detailed
        if step % BLOCK_STEPS == 0:
            seed = recorder.identity.run_id if recorder.place is None else recorder.place.run_id
            is_window = self._sampling.is_window(step // BLOCK_STEPS, seed=seed or "")
            recorder.detailed, recorder.shared.window = is_window and self.level >= DETAIL_LEVEL, step
        if recorder.detailed and not leads_in:
            recorder.steps.is_detailed()

    def _read_level_file(self) -> None:
        if self._recorder.place is None:
            return
        try:
            with (self._recorder.place.run / LEVEL_FILE).open(errors="replace") as file:
                text = file.read(MAX_LEVEL_CHARACTERS).strip()
        except OSError:
            return
        if text.isdecimal() and int(text) != self.level:
            self._set_level(int(text), why=BY_LEVEL_FILE)

    def _set_level(self, level: int, *, why: str) -> None:
        logger.warning("traincope records level %d from now on: %s", level, why)
        self._recorder.event(RECORDER_LEVEL, {"level": level, "was": self.level, "why": why})
        self.level = level
        self._recorder.detailed &= level >= DETAIL_LEVEL
        for hook in reversed([hook for hook in self.on if hook.level > level]):
            self.on.remove(hook)
            guard(hook.remove)()
            if self._recorder.probes[hook.name].startswith(ON):  # otherwise the hook has set its own reason
                self._recorder.probes[hook.name] = f"off: level {level}, {why}"
        for hook in self._hooks:
            if hook.level <= level and hook not in self.on:
                guard(self._install)(hook)
        self._recorder.write_metadata()

    def _install(self, hook: Hook) -> None:
        """Install one hook. Undo a partial installation after any error.

        An installed hook is on, unless it sets another state itself.
        """
        states, done = self._recorder.probes, False
        states[hook.name] = FAILED
        try:
            hook.install(self._recorder)
            done = True
        except INSTALL_ERRORS as error:
            states[hook.name] = f"absent: {type(error).__name__}: {error}"
        finally:
            if not done:
                guard(hook.remove)()
        if done:
            states[hook.name] = ON if states[hook.name] == FAILED else states[hook.name]
            self.on.append(hook)
