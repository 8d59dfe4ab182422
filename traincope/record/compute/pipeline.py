"""Hook on pipeline actions (F, I, W, B) with stage and microbatch, for every schedule.

The stage object's chunk methods are pure computation: receives are waited for before them, sends are posted after them.
The schedule computes the last stage's loss right after the forward chunk. The loss belongs to that action.

On a GPU, marks on the compute stream show when the actions ran there.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

from traincope.events import Kind, Phase
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard
from traincope.record.instrumentation.late_imports import WhenImported
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import pipeline_schedule, pipeline_stage
from traincope.record.segments.slots import Slot, end
from traincope.record.session.recorder import Recorder

WEIGHTS = "backward_weight_one_chunk"
"""Method of a stage: the part of its backward that computes the gradients of weights."""
ACTION, NO_PHASE, EVALUATION = int(Kind.ACTION), int(Phase.NONE), int(Phase.EVALUATION)


class _Current(threading.local):
    schedule = ""
    forward: Slot | None = None
    """The latest F action. A loss computed after it extends it."""


class PipelineActions:
    """Hook on `torch.distributed.pipelining`."""

    name = "pipeline"
    level = 1

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._patches = Patches()
        self._current = _Current()
        self._late = WhenImported("torch.distributed.pipelining.schedules", self._patch)

    def install(self, recorder: Recorder) -> None:
        """Watch for the import of torch's pipelining: importing it here would cost every other training a second."""
        self._recorder = recorder
        self._late.watch(recorder.now_and_then, forget=recorder.remove_listener)

    def _patch(self, schedules: Any) -> None:
        from torch import is_grad_enabled

        self._is_grad_enabled = is_grad_enabled
        base, schedule_base = pipeline_stage(), pipeline_schedule()
        actions: dict[str, Callable[..., str]] = {
            "forward_one_chunk": lambda *_, **__: "F",
            "backward_one_chunk": _backward_action,
        }
        if hasattr(base, WEIGHTS):  # torch 2.4 does not split the backward
            actions[WEIGHTS] = lambda *_, **__: "W"
        for method, action in actions.items():
            self._patches.replace(base, method, self._recorded(getattr(base, method), action))
        for schedule in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
            self._patches.replace(schedule, "step", self._recording_schedule(schedule.step))
        self._patches.replace(
            schedule_base, "_maybe_compute_loss", self._extending_forward(schedule_base._maybe_compute_loss)
        )

    def remove(self) -> None:
        self._late.stop()
        self._patches.restore()
        self._current = _Current()

    def _recorded(self, original: Callable[..., Any], action: Callable[..., str]) -> Callable[..., Any]:
        recorder, current = self._recorder, self._current
        begin, finish = guard(self._begin, every=SAMPLING_INTERVAL), guard(self._end, every=SAMPLING_INTERVAL)

        @functools.wraps(original)
        def chunk(stage: Any, /, *args: Any, **kwargs: Any) -> Any:
            slot = begin(action, stage, args, kwargs) if recorder.detailed else None
            try:
                return original(stage, *args, **kwargs)
            finally:
                current.forward = slot
                if slot is not None:
                    finish(slot)

        return chunk

    def _begin(self, action: Callable[..., str], stage: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Slot:
        """Open the record of an action. The chunk's number is the first argument, positional or named."""
        names, device = self._recorder.names, self._phases.device
        microbatch = int(args[0] if args else next(iter(kwargs.values())))
        fields = (
            NO_PHASE if self._is_grad_enabled() else EVALUATION,
            names.intern(action(*args, **kwargs)),
            names.intern(self._current.schedule),
            microbatch,
            int(stage.stage_index),
        )
        slot = self._recorder.threads.writer.begin(ACTION, *fields)
        if device is not None:
            device.begin_action(slot, *fields)
        return slot

    def _end(self, slot: Slot) -> None:
        if self._phases.device is not None:
            self._phases.device.end_action(slot)
        end(slot)

    def _extend(self, slot: Slot, stage: Any) -> None:
        if not stage.is_last:
            return
        if self._phases.device is not None:
            self._phases.device.extend_action()
        end(slot)

    def _recording_schedule(self, original: Callable[..., Any]) -> Callable[..., Any]:
        current = self._current
        begin, finish = guard(self._schedule_begins), guard(self._recorder.steps.schedule_ended)

        @functools.wraps(original)
        def step(schedule: Any, /, *args: Any, **kwargs: Any) -> Any:
            current.schedule = type(schedule).__name__
            begin()
            try:
                return original(schedule, *args, **kwargs)
            finally:
                finish()

        return step

    def _schedule_begins(self) -> None:
        """Begin a step where the schedule begins, on every stage alike: a stage receives before its first forward."""
        if self._is_grad_enabled():
            self._recorder.before_work()
        self._recorder.steps.schedule_begins()

    def _extending_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Extend the F action to the end of its loss. Stages without one may wait for a send in between."""
        current, extend = self._current, guard(self._extend)

        @functools.wraps(original)
        def compute_loss(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                if current.forward is not None:
                    extend(current.forward, args[1] if len(args) > 1 else kwargs.get("stage"))

        return compute_loss


def _backward_action(*args: Any, **kwargs: Any) -> str:
    """Return B for a whole backward, I for the part of the inputs.

    The arguments are `backward_one_chunk(index, loss, full_backward, last_backward)`.
    """
    full = args[2] if len(args) > 2 else kwargs.get("full_backward", True)
    return "B" if full else "I"
