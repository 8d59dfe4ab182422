"""An open part of a step, and the hook that opens them for the trainers that name theirs."""

import threading
from functools import partial
from typing import Any

from traincope.events import APART, SKIPPED_STEP, Phase
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.late_imports import WhenImported
from traincope.record.instrumentation.patching import Patches
from traincope.record.segments.slots import Slot, end
from traincope.record.session.recorder import Recorder
from traincope.record.trainers import hugging_face, torchft, trl

TRAINERS = (trl, hugging_face, torchft)
"""Each names a module of its package and patches it once it is imported."""


class Part:
    """A part that the calling thread has begun. Its FLOPs are not the model's."""

    __slots__ = ("_slot", "_threads")

    def __init__(self, recorder: Recorder, slot: Slot) -> None:
        self._slot, self._threads = slot, recorder.threads
        self._threads.parts += 1

    def end(self) -> None:
        self._threads.parts -= 1
        end(self._slot)


@guard
def begin_part(recorder: Recorder, name: Any) -> Part | None:
    """Begin a part, which may begin a step; None if the run is over. Names that are not in APART stay names."""
    if not recorder.active:
        return None
    recorder.before_work()
    phase = APART.get(str(name), Phase.NAMED)
    slot = recorder.threads.writer.begin_phase(int(phase), recorder.names.intern(str(name)))
    return Part(recorder, slot)


class TrainerParts:
    """Hook on the parts of a step that trainers mark themselves."""

    name = "trainers"
    level = 0

    def __init__(self) -> None:
        self._patches = Patches()
        self._late = [
            WhenImported(each.MODULE, partial(each.patch, patches=self._patches, begin=self._begin, event=self._event))
            for each in TRAINERS
        ]

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        for late in self._late:
            late.watch(recorder.now_and_then, forget=recorder.remove_listener)

    def remove(self) -> None:
        for late in self._late:
            late.stop()
        self._patches.restore()

    def _event(self, name: str, details: dict[str, Any]) -> None:
        """Record what a trainer says about its step. An update that it leaves out is left out of the step."""
        recorder = self._recorder
        if name == SKIPPED_STEP and threading.get_ident() == recorder.main_thread:
            recorder.steps.skipped()
        recorder.event(name, details)

    def _begin(self, name: str, *, nested: bool = True) -> Part | None:
        """Begin a part; with `nested` false only outside of all others."""
        recorder = self._recorder
        return begin_part(recorder, name) if nested or not recorder.threads.parts else None
