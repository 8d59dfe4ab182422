"""Hook on phases: forward, backward, recomputation, optimizer, evaluation.

Only outermost calls become spans: the root module's forward, a whole backward, an optimizer's step. A module that runs
inside a backward with gradients enabled is being recomputed.
"""

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from traincope.events import Kind, Phase
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import graph_task_reader
from traincope.record.segments.slots import Slot, end
from traincope.record.session.recorder import Recorder

GRADIENT_FUNCTIONS = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")
"""Functions of `torch.nn.utils` that belong to the optimizer's part of a step."""


NO_GRAPH_TASK = -1
"""Autograd's answer outside a backward. On a GPU backward runs on threads of its own."""


class _Caller:
    """A thread that calls modules. Its thread-local data hold it, so it goes with the thread."""

    __slots__ = ("__weakref__",)


class _ThreadState(threading.local):
    forward = 0
    """Depth of calls of modules."""
    backward = 0
    """Depth of backward calls."""

    def __init__(self) -> None:
        self.caller = _Caller()


class Phases:
    """Hook on modules, autograd and optimizers."""

    name = "phases"
    level = 0

    def __init__(self) -> None:
        self._patches = Patches()
        self._handles: list[Any] = []
        self._thread = _ThreadState()
        self._graph_task: Callable[[], int] = lambda: NO_GRAPH_TASK
        self._open_optimizers: dict[int, Slot] = {}
        self._after_backward: list[Callable[[], None]] = []
        self._after_phase: list[Callable[[Phase], None]] = []
        self._callers: weakref.WeakSet[_Caller] = weakref.WeakSet()
        """Threads that have called a root module, without autograd's threads, which recompute."""

    @property
    def in_backward(self) -> bool:
        """Return whether the calling thread is inside a backward call, or runs a part of another thread's backward."""
        return self._thread.backward > 0 or self._graph_task() != NO_GRAPH_TASK

    @property
    def in_forward(self) -> bool:
        """Return whether the calling thread is inside a module's call."""
        return self._thread.forward > 0

    def others_call_modules(self) -> bool:
        """Return whether another live thread has called root modules.

        `sys._current_frames()` would name the live threads, but in Python 3.11 it deadlocks if it starts the garbage
        collector and that frees a `threading.local`.
        """
        return len(self._callers) > (self._thread.caller in self._callers)

    def after_backward(self, listener: Callable[[], None]) -> None:
        """Call `listener` at the end of every backward, before its span closes. Repeated registrations count once."""
        if listener not in self._after_backward:
            self._after_backward.append(listener)

    def after_phase(self, listener: Callable[[Phase], None]) -> None:
        """Call `listener` after every forward, backward and optimizer step. Repeated registrations count once."""
        if listener not in self._after_phase:
            self._after_phase.append(listener)

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patch_forward()
        self._patch_backward()
        self._hook_optimizers()
        self._patch_gradient_functions()

    def remove(self) -> None:
        self._patches.restore()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._after_backward.clear()
        self._after_phase.clear()
        self._callers.clear()

    def _patch_forward(self) -> None:
        from torch.compiler import is_compiling
        from torch.nn import Module

        original, thread, recorder = Module.__call__, self._thread, self._recorder
        self._graph_task = graph_task_reader()
        begin, finish = guard(self._begin_forward), guard(self._end_forward)

        def __call__(module: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if is_compiling() or thread.forward or not recorder.active:
                return original(module, *args, **kwargs)
            slot = begin(module)
            thread.forward = 1
            try:
                return original(module, *args, **kwargs)
            finally:
                thread.forward = 0
                if slot is not None:
                    finish(slot)

        self._patches.replace(Module, "__call__", __call__)

    def _begin_forward(self, module: Any) -> Slot:
        import torch

        recorder = self._recorder
        if self._thread.backward or self._graph_task() != NO_GRAPH_TASK:
            phase = Phase.RECOMPUTE
        elif torch.is_grad_enabled() or module.training:
            phase = Phase.FORWARD
            recorder.before_work()
        else:
            phase = Phase.EVALUATION
        if phase is not Phase.RECOMPUTE:
            self._callers.add(self._thread.caller)
        return recorder.writer().begin(Kind.PHASE, phase, recorder.names.intern(type(module).__name__))

    def _end_forward(self, slot: Slot) -> None:
        end(slot)
        self._ended(Phase.FORWARD)

    def _ended(self, phase: Phase) -> None:
        for listener in self._after_phase:
            listener(phase)

    def _patch_backward(self) -> None:
        from torch import autograd

        for name in ("backward", "grad"):
            self._patches.replace(autograd, name, self._backward(getattr(autograd, name)))

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch.compiler import is_compiling

        thread, recorder = self._thread, self._recorder
        begin, finish = guard(self._begin_backward), guard(self._end_backward)

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or thread.backward or not recorder.active:
                return original(*args, **kwargs)
            slot, outer = begin(), thread.forward
            thread.backward, thread.forward = 1, 0
            try:
                return original(*args, **kwargs)
            finally:
                finish(slot)
                thread.backward, thread.forward = 0, outer

        return backward

    def _begin_backward(self) -> Slot:
        recorder = self._recorder
        recorder.steps.backward_began()
        return recorder.writer().begin(Kind.PHASE, Phase.BACKWARD, recorder.names.intern("backward"))

    def _end_backward(self, slot: Slot | None) -> None:
        for listener in self._after_backward:
            listener()
        if slot is not None:
            end(slot)
            self._ended(Phase.BACKWARD)

    def _hook_optimizers(self) -> None:
        """Hook optimizers. While torch.compile traces an optimizer our hooks do nothing: they would break its graph."""
        from torch.compiler import is_compiling
        from torch.nn import Module
        from torch.optim import optimizer

        begin, finish = guard(self._begin_optimizer), guard(self._end_optimizer)

        def before(optimizer: Any, *_: Any) -> None:
            if not is_compiling():
                begin(optimizer)

        def after(optimizer: Any, *_: Any) -> None:
            if not is_compiling():
                finish(optimizer)

        self._handles.append(optimizer.register_optimizer_step_pre_hook(before))
        self._handles.append(optimizer.register_optimizer_step_post_hook(after))
        for owner in (optimizer.Optimizer, Module):
            self._patches.replace(owner, "zero_grad", self._zeroing(owner.zero_grad))

    def _zeroing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch.compiler import is_compiling

        phased, recorder = self._as_optimizer_phase(original, "zero_grad"), self._recorder
        gradients_zeroed = guard(recorder.steps.gradients_zeroed)

        @functools.wraps(original)
        def zero_grad(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = phased(owner, *args, **kwargs)
            if recorder.active and not is_compiling():
                gradients_zeroed(owner)
            return result

        return zero_grad

    def _begin_optimizer(self, optimizer: Any) -> None:
        recorder = self._recorder
        if recorder.active:
            recorder.steps.optimizer_steps()
            name = recorder.names.intern(type(optimizer).__name__)
            self._open_optimizers[id(optimizer)] = recorder.writer().begin(Kind.PHASE, Phase.OPTIMIZER, name)

    def _end_optimizer(self, optimizer: Any) -> None:
        slot = self._open_optimizers.pop(id(optimizer), None)
        if slot is not None:
            end(slot)
            self._recorder.steps.optimizer_stepped(optimizer)
            self._ended(Phase.OPTIMIZER)

    def _patch_gradient_functions(self) -> None:
        from torch.nn import utils
        from torch.nn.utils import clip_grad

        for name in GRADIENT_FUNCTIONS:
            for module in (utils, clip_grad):
                if hasattr(module, name):
                    self._patches.replace(module, name, self._as_optimizer_phase(getattr(module, name), name))

    def _as_optimizer_phase(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        from torch.compiler import is_compiling

        recorder = self._recorder

        @guard
        def begin() -> Slot:
            return recorder.writer().begin(Kind.PHASE, Phase.OPTIMIZER, recorder.names.intern(name))

        finish = guard(end)

        @functools.wraps(original)
        def phased(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            slot = begin() if recorder.active else None
            try:
                return original(*args, **kwargs)
            finally:
                if slot is not None:
                    finish(slot)

        return phased
