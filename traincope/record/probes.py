"""The hooks of one run: which are on, at which level, and how they come off.

Levels: 0 steps and phases; 1 and collectives, waits and pipeline actions; 2 and modules; 3 and
kernel windows. A running job's level is lowered (or raised again) by writing a digit to the file
`level` in its run directory.

Each rank sees that at another moment, some a step earlier. What they count, to tell which collectives are the same,
they must begin to count at the same one: so a level is raised at the next step that AGREED_STEPS divides. Should
that be another one for some, all begin anew at later steps, ever fewer, which soon are the same: after step 96 = 3 x 32
comes 128 = 4 x 32, then 256.
"""

import logging
import sys
from time import monotonic_ns
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from traincope.record.guard import guard
from traincope.record.throttle import Throttle
from traincope.record.torch_private import hide_from_compiler
from traincope.store.layout import LEVEL_FILE

if TYPE_CHECKING:
    from traincope.record.hooks import Hook
    from traincope.record.recorder import Recorder

logger = logging.getLogger(__name__)

LOOK_INTERVAL_NS = 1_000_000_000
AGREED_STEPS = 32
LONGEST_WISH = 16
"""Characters of the file that are read: it is anybody's."""
ON = "on"
FAILED = "absent: it failed to install"
ASKED = f"asked for by the file {LEVEL_FILE}"
UNABLE = (ImportError, AttributeError, RuntimeError, KeyError, TypeError, OSError)
"""What a hook's `install` raises where this torch or this machine lacks what it watches."""


def next_agreed(step: int) -> int:
    """The next step at which ranks that see a level raised during `step` begin to count."""
    return (max(step, 0) // AGREED_STEPS + 1) * AGREED_STEPS


def after_agreed(step: int) -> int:
    """The step at which those that began at `step` begin anew: later by the largest power of 2 that divides it.

    From any two steps these lead to a common one, the first power of 2 after both at the latest.
    """
    return step + (step & -step)


def hide_from_compiler_once() -> None:
    """Everything of ours that torch calls passes a guard; all guards run one code object."""
    if "torch" in sys.modules:
        hide_from_compiler(guard(hide_from_compiler_once), calls_too=True)


@runtime_checkable
class Counting(Protocol):
    """A hook whose counts identify what ranks do together."""

    def count_anew(self, step: int) -> None: ...


class Probes:
    """Installs hooks, and takes them off again; every change is on the training thread, between steps."""

    def __init__(self, recorder: "Recorder", hooks: "tuple[Hook, ...]", *, level: int, throttle: Throttle) -> None:
        self._recorder = recorder
        self._hooks = hooks
        self.on: list[Hook] = []
        """Installed, in the order they were."""
        self._asked = level
        """What the file or the caller wants; a throttle may hold the level below."""
        self._throttle = throttle
        self._looked_ns = 0
        self._raises = False
        """Whether the level is to be what was asked for from `_anew_at` on."""
        self._anew_at: int | None = None
        """The step at which counts begin anew; None where nobody has asked for another level, for that may be a higher
        one for some: those that a throttle has lowered."""
        self.level = level

    def install(self) -> None:
        guard(hide_from_compiler_once)()
        for hook in self._hooks:
            if hook.level > self.level:
                self._recorder.probes[hook.name] = f"off: needs level {hook.level}, this run records level {self.level}"
            elif hook not in self.on:
                guard(self._install)(hook)
        self._recorder.between_steps(self.look)

    def remove(self) -> None:
        """All of them, last first: torch is then as it was."""
        while self.on:
            guard(self.on.pop().remove)()

    def look(self) -> None:
        """Between two steps: are we too expensive, does somebody want another level?"""
        if self._anew_at is not None and self._recorder.shared.step >= self._anew_at:
            self._count_anew(self._recorder.shared.step, agreed=self._anew_at)
        if self._throttle.too_expensive(self._recorder.steps.latest) and self.level > 0:
            self._set_level(self.level - 1, why=f"its own time was above {self._throttle.percent} of the step")
        now = monotonic_ns()
        if now - self._looked_ns >= LOOK_INTERVAL_NS:
            self._looked_ns = now
            self._look_for_wish()

    def _look_for_wish(self) -> None:
        if self._recorder.place is None:
            return
        try:
            with (self._recorder.place.run / LEVEL_FILE).open(errors="replace") as file:
                text = file.read(LONGEST_WISH).strip()
        except OSError:
            return
        if text.isdecimal() and int(text) != self._asked:
            self._asked = int(text)
            self._raises = self._asked > self.level
            self._anew_at = next_agreed(self._recorder.shared.step)
            if self._asked < self.level:
                self._set_level(self._asked, why=ASKED)

    def _count_anew(self, step: int, *, agreed: int) -> None:
        """A rank that missed the step's beginning takes part the next time."""
        if step != agreed:
            self._anew_at = next_agreed(step)
            return
        if self._raises:
            self._raises = False
            self._set_level(self._asked, why=ASKED)
        for hook in self._hooks:
            if isinstance(hook, Counting):
                guard(hook.count_anew)(step)
        self._anew_at = after_agreed(step)

    def _set_level(self, level: int, *, why: str) -> None:
        logger.warning("traincope records level %d from now on: %s", level, why)
        self._recorder.event("recorder level", {"level": level, "was": self.level, "why": why})
        self.level = level
        for hook in reversed([hook for hook in self.on if hook.level > level]):
            self.on.remove(hook)
            guard(hook.remove)()
            if self._recorder.probes[hook.name].startswith(ON):  # else it has told a reason of its own
                self._recorder.probes[hook.name] = f"off: level {level}, {why}"
        for hook in self._hooks:
            if hook.level <= level and hook not in self.on:
                guard(self._install)(hook)
        self._recorder.note()

    def _install(self, hook: "Hook") -> None:
        """What a hook had done before it failed is taken back, whatever it failed with.

        A hook that is installed is on, unless it says itself what else it is.
        """
        states, done = self._recorder.probes, False
        states[hook.name] = FAILED
        try:
            hook.install(self._recorder)
            done = True
        except UNABLE as error:
            states[hook.name] = f"absent: {type(error).__name__}: {error}"
        finally:
            if not done:
                guard(hook.remove)()
        if done:
            states[hook.name] = ON if states[hook.name] == FAILED else states[hook.name]
            self.on.append(hook)
