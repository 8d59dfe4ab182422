"""The hooks of one run: install them, change the level, remove them.

Levels: 0 records steps and phases; 1 adds collectives, waits and pipeline actions; 2 adds modules; 3 adds kernel
windows. Writing a digit to the file `level` in the run directory changes the level of a running job.

Ranks see that file at different moments, some a step earlier. The counts that identify a collective across ranks must
begin at the same step on all ranks. Therefore a level is raised at the next step that AGREED_STEPS divides. If ranks
choose different steps, all restart their counts at later steps, ever more rarely, which soon coincide: after step 96 =
3 x 32 comes 128 = 4 x 32, then 256.
"""

import logging
import sys
from time import monotonic_ns
from typing import Protocol, runtime_checkable

from traincope.events import RECORDER_LEVEL
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.torch_private import hide_from_compiler
from traincope.record.session.recorder import Recorder
from traincope.record.session.throttle import Throttle
from traincope.store.layout import LEVEL_FILE

logger = logging.getLogger(__name__)

LOOK_INTERVAL_NS = 1_000_000_000
AGREED_STEPS = 32
MAX_LEVEL_CHARACTERS = 16
"""Number of characters read from the level file, which any user can write."""
ON = "on"
FAILED = "absent: it failed to install"
BY_LEVEL_FILE = f"requested by the file {LEVEL_FILE}"
INSTALL_ERRORS = (ImportError, AttributeError, RuntimeError, KeyError, TypeError, OSError)
"""Errors of a hook's `install` if this torch or this machine lacks the hooked part."""


def next_agreed_step(step: int) -> int:
    """Return the next step at which ranks that see a raised level during `step` begin to count."""
    return (max(step, 0) // AGREED_STEPS + 1) * AGREED_STEPS


def following_agreed_step(step: int) -> int:
    """Return the step at which ranks that began at `step` restart their counts: later by the largest power of 2 in
    `step`.

    From any two steps these lead to a common step, at the latest the first power of 2 after both.
    """
    return step + (step & -step)


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


@runtime_checkable
class SequenceCounter(Protocol):
    """A hook whose counts identify operations across ranks."""

    def restart_counts(self, step: int) -> None: ...


class Probes:
    """Install and remove hooks. Every change is on the training thread, between steps."""

    def __init__(self, recorder: Recorder, hooks: tuple[Hook, ...], *, level: int, throttle: Throttle) -> None:
        self._recorder = recorder
        self._hooks = hooks
        self.on: list[Hook] = []
        """Installed hooks, in order of installation."""
        self._requested_level = level
        """The level that the file or the caller requests. A throttle may hold the level below it."""
        self._throttle = throttle
        self._checked_ns = 0
        self._raise_pending = False
        """True if the level rises to the requested one at step `_restart_at`."""
        self._restart_at: int | None = None
        """The step at which counts restart. None until the level file requests another level.

        Such a level may be higher for some ranks: those whose level a throttle has lowered.
        """
        self.level = level

    def install(self) -> None:
        guard(hide_from_compiler_once)()
        for hook in self._hooks:
            if hook.level > self.level:
                self._recorder.probes[hook.name] = f"off: needs level {hook.level}, this run records level {self.level}"
            elif hook not in self.on:
                guard(self._install)(hook)
        self._recorder.between_steps(self.check)

    def remove(self) -> None:
        """Remove all hooks, last first. torch is then as before."""
        while self.on:
            guard(self.on.pop().remove)()

    def check(self) -> None:
        """Check between two steps whether the recorder is too expensive and whether the level file has changed."""
        if self._restart_at is not None and self._recorder.shared.step >= self._restart_at:
            self._restart_counts(self._recorder.shared.step, agreed=self._restart_at)
        if self._throttle.is_too_expensive(self._recorder.steps.latest) and self.level > 0:
            self._set_level(self.level - 1, why=f"its own time was above {self._throttle.percent} of the step")
        now = monotonic_ns()
        if now - self._checked_ns >= LOOK_INTERVAL_NS:
            self._checked_ns = now
            self._read_level_file()

    def _read_level_file(self) -> None:
        if self._recorder.place is None:
            return
        try:
            with (self._recorder.place.run / LEVEL_FILE).open(errors="replace") as file:
                text = file.read(MAX_LEVEL_CHARACTERS).strip()
        except OSError:
            return
        if text.isdecimal() and int(text) != self._requested_level:
            self._requested_level = int(text)
            self._raise_pending = self._requested_level > self.level
            self._restart_at = next_agreed_step(self._recorder.shared.step)
            if self._requested_level < self.level:
                self._set_level(self._requested_level, why=BY_LEVEL_FILE)

    def _restart_counts(self, step: int, *, agreed: int) -> None:
        """Restart the counts at the agreed step. A rank that missed that step takes part at the next one."""
        if step != agreed:
            self._restart_at = next_agreed_step(step)
            return
        if self._raise_pending:
            self._raise_pending = False
            self._set_level(self._requested_level, why=BY_LEVEL_FILE)
        for hook in self._hooks:
            if isinstance(hook, SequenceCounter):
                guard(hook.restart_counts)(step)
        self._restart_at = following_agreed_step(step)

    def _set_level(self, level: int, *, why: str) -> None:
        logger.warning("traincope records level %d from now on: %s", level, why)
        self._recorder.event(RECORDER_LEVEL, {"level": level, "was": self.level, "why": why})
        self.level = level
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
