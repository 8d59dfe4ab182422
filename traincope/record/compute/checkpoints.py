"""Hook on checkpoints: the calling thread's time in a save or load, and the end of asynchronous saves.

torch's functions and those of safetensors, in which Hugging Face's libraries keep weights.
"""

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from traincope.events import CHECKPOINT_FAILED, CHECKPOINT_SAVED, Flag, Phase
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.late_imports import WhenImported
from traincope.record.instrumentation.patching import Patches
from traincope.record.segments.slots import Slot, add_flag
from traincope.record.session.recorder import Recorder

ASYNCHRONOUS = "async_save"


class _Depth(threading.local):
    inside = False


class Checkpoints:
    """Hook on `torch.save`, `torch.load`, `torch.distributed.checkpoint` and safetensors, outermost calls only."""

    name = "checkpoints"
    level = 0

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._patches = Patches()
        self._depth = _Depth()
        self._late = (
            WhenImported("torch", self._patch("save", "load")),
            WhenImported("torch.distributed.checkpoint", self._patch("save", "load", ASYNCHRONOUS)),
            WhenImported("torch.distributed.checkpoint.state_dict_saver", self._patch("save", ASYNCHRONOUS)),
            WhenImported("torch.distributed.checkpoint.state_dict_loader", self._patch("load")),
            WhenImported("safetensors.torch", self._patch(save_file="save", serialize_file="save", load_file="load")),
        )
        """Hugging Face's libraries import safetensors' `save_file` early. It looks up `serialize_file` at each call."""

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        for late in self._late:
            late.watch(recorder.now_and_then, forget=recorder.remove_listener)

    def remove(self) -> None:
        for late in self._late:
            late.stop()
        self._patches.restore()

    def _patch(self, *names: str, **actions: str) -> Callable[[ModuleType], None]:
        """Build a patch of the functions that save or load. `actions`: functions whose names do not say which."""

        def patch(module: ModuleType) -> None:
            for name, action in (*zip(names, names, strict=True), *actions.items()):
                if hasattr(module, name):
                    self._patches.replace(module, name, self._recorded(getattr(module, name), action))

        return patch

    def _recorded(self, original: Callable[..., Any], action: str) -> Callable[..., Any]:
        recorder, phases, depth, follow = self._recorder, self._phases, self._depth, guard(self._follow)

        @guard
        def begin() -> Slot:
            return phases.begin(Phase.CHECKPOINT_STALL, recorder.names.intern(f"{action} checkpoint"))

        @guard
        def finish(slot: Slot, raised: bool) -> None:
            if raised:
                add_flag(slot, Flag.RAISED)
            phases.end(slot)

        @functools.wraps(original)
        def stalled(*args: Any, **kwargs: Any) -> Any:
            if depth.inside or not recorder.active:
                return original(*args, **kwargs)
            slot, depth.inside, raised = begin(), True, True
            try:
                result = original(*args, **kwargs)
                raised = False
            finally:
                depth.inside = False
                if slot is not None:
                    finish(slot, raised)
            if action == ASYNCHRONOUS:  # what a load returns is the training's, and may answer any question
                follow(result)
            return result

        return stalled

    def _follow(self, result: Any) -> None:
        """Follow an asynchronous save. It returns one future or several."""
        future = getattr(result, "upload_completion", result)
        if hasattr(future, "add_done_callback"):
            future.add_done_callback(guard(self._done))

    def _done(self, future: Any) -> None:
        if self._recorder.active:
            error = future.exception()
            name = CHECKPOINT_SAVED if error is None else CHECKPOINT_FAILED
            self._recorder.event(name, {} if error is None else {"type": _kind(error)})


def _kind(error: BaseException) -> str:
    return type(error).__name__
