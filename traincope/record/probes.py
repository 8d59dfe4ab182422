"""The hooks of one run: install them, change the level, remove them.

Levels: 0 records steps and phases; 1 adds collectives, waits and pipeline actions; 2 adds modules; 3 adds kernel
windows. Writing a digit to the file `level` in the run directory changes the level of a running job (`control.py`).

Detail, everything above level 0, is recorded in windows of consecutive steps: those that `sampling.py` draws, and those
that a person or an anomaly requests. It begins only where a block begins: the counts that identify a collective across
ranks begin there, and ranks see the files at different steps.
"""

import logging
import sys
from typing import Protocol

from traincope.events import BLOCK_STEPS, DETAIL_LEVEL, RECORDER_LEVEL, REQUESTED_WINDOW
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.torch_private import hide_from_compiler
from traincope.record.session.recorder import Recorder
from traincope.record.session.sampling import Sampling
from traincope.record.session.steps import detail_flags
from traincope.store.job.requests import WindowRequest
from traincope.store.layout import LEVEL_FILE

logger = logging.getLogger(__name__)

KERNEL_LEVEL = 3
"""The level whose hooks a request for kernels installs too, for its steps."""
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
        self._kernel_hooks = tuple(hook for hook in hooks if hook.level == KERNEL_LEVEL)
        self.on: list[Hook] = []
        """Installed hooks, in order of installation."""
        self._sampling = sampling
        self._drawn = True
        """True in a block that the sampling draws. The run begins in one."""
        self._requested = False
        """True in a block that a request asks for."""
        self._announced: set[WindowRequest] = set()
        self._set(level)

    @property
    def level(self) -> int:
        return self._level

    def _set(self, level: int) -> None:
        self._level = self._recorder.level = level

    def install(self) -> None:
        self._recorder.set_detailed(self.level >= DETAIL_LEVEL)
        guard(hide_from_compiler_once)()
        for hook in self._hooks:
            if hook.level > self.level:
                self._recorder.probes[hook.name] = self._why_off(hook)
            elif hook not in self.on:
                guard(self._install)(hook)
        self._recorder.now_and_then(self._follow_files)
        self._recorder.between_blocks(self.check)

    def remove(self) -> None:
        """Remove all hooks, last first. torch is then as before."""
        while self.on:
            guard(self.on.pop().remove)()

    def check(self) -> None:
        """Begin or end a window between two blocks of steps.

        Its first step only leads in: what is under way there began without a record. The cost of requested steps
        decides nothing, because their kernels may be traced.
        """
        recorder, step = self._recorder, self._recorder.shared.step
        while recorder.steps.not_judged:
            cost = recorder.steps.not_judged.popleft()
            if not self._requested:
                self._sampling.add(cost, detailed=recorder.detailed, native=recorder.is_native)
        leads_in, was_drawn = not recorder.detailed, self._drawn
        seed = recorder.identity.run_id if recorder.place is None else recorder.place.run_id
        self._drawn = self._sampling.is_window(step // BLOCK_STEPS, seed=seed or "")
        requests = recorder.control.requests_at(step)
        self._requested = bool(requests)
        recorder.begin_block(detailed=self.level >= DETAIL_LEVEL and (self._drawn or self._requested))
        for request in requests if recorder.detailed else ():
            self._announce(request)
        if recorder.detailed:
            recorder.steps.detail = detail_flags(requested=not self._drawn)
            if not leads_in:
                recorder.steps.is_detailed(requested=not (self._drawn and was_drawn))

    def _follow_files(self) -> None:
        """Follow the level file and the requests."""
        recorder = self._recorder
        if recorder.place is None:
            return
        recorder.control.look(recorder.place)
        if recorder.control.level not in (None, self.level):
            self._set_level(recorder.control.level, why=BY_LEVEL_FILE)
        self._switch_kernels(on=recorder.control.traces_from(recorder.shared.step))

    def _announce(self, request: WindowRequest) -> None:
        """Record the reason of a window, once."""
        if request not in self._announced:
            self._announced.add(request)
            about = {"why": request.reason, "first_step": request.first_step + 1, "steps": request.num_steps}
            self._recorder.event(REQUESTED_WINDOW, about)

    def _switch_kernels(self, *, on: bool) -> None:
        """Install the hooks of kernel windows for a request, or remove them after it."""
        for hook in self._kernel_hooks if self.level < KERNEL_LEVEL else ():
            if on and hook not in self.on and self.level >= DETAIL_LEVEL:
                guard(self._install)(hook)
            elif not on and hook in self.on:
                self.on.remove(hook)
                guard(hook.remove)()
                self._recorder.probes[hook.name] = self._why_off(hook)

    def _why_off(self, hook: Hook) -> str:
        return f"off: needs level {hook.level}, this run records level {self.level}"

    def _set_level(self, level: int, *, why: str) -> None:
        logger.warning("traincope records level %d from now on: %s", level, why)
        self._recorder.event(RECORDER_LEVEL, {"level": level, "was": self.level, "why": why})
        self._set(level)
        self._recorder.set_detailed(self._recorder.detailed and level >= DETAIL_LEVEL)
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
