"""What the training thread computes: forward, backward, recomputation, optimizer, evaluation.

Only outermost calls become spans: the root module's forward, a whole backward, an optimizer's step.
A module that runs inside a backward with gradients enabled is being recomputed.
"""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from traincope.events import Kind, Phase
from traincope.record.guard import guard
from traincope.record.patching import Patches
from traincope.record.recorder import Recorder
from traincope.record.slots import Slot, end
from traincope.record.torch_private import graph_task_reader

GRADIENT_FUNCTIONS = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")
"""Functions of `torch.nn.utils` that belong to the optimizer's part of a step."""


NO_GRAPH_TASK = -1
"""What autograd answers outside a backward; on a GPU backward runs on threads of its own."""


class _Depth(threading.local):
    forward = 0
    backward = 0


class Phases:
    """Hook on modules, autograd and optimizers."""

    name = "phases"
    level = 0

    def __init__(self) -> None:
        self._patches = Patches()
        self._handles: list[Any] = []
        self._depth = _Depth()
        self._graph_task: Callable[[], int] = lambda: NO_GRAPH_TASK
        self._open_optimizers: dict[int, Slot] = {}
        self._after_backward: list[Callable[[], None]] = []
        self._after_phase: list[Callable[[Phase], None]] = []
        self._callers: set[int] = set()
        """Threads that have called a root module; not autograd's, which recompute."""

    @property
    def in_backward(self) -> bool:
        """Whether the calling thread is inside a backward call, or runs a part of another thread's."""
        return self._depth.backward > 0 or self._graph_task() != NO_GRAPH_TASK

    @property
    def in_forward(self) -> bool:
        """Whether the calling thread is inside a module's call."""
        return self._depth.forward > 0

    def others_call_modules(self) -> bool:
        """Whether a thread beside the calling one has called root modules, and goes on living."""
        alive = sys._current_frames().keys()
        return any(caller in alive for caller in self._callers if caller != threading.get_ident())

    def after_backward(self, listener: Callable[[], None]) -> None:
        """Call `listener` at the end of every backward, before its span closes; once, however often it is asked for."""
        if listener not in self._after_backward:
            self._after_backward.append(listener)

    def after_phase(self, listener: Callable[[Phase], None]) -> None:
        """Call `listener` after every forward, backward and optimizer step; likewise once."""
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

        original, depth, recorder = Module.__call__, self._depth, self._recorder
        self._graph_task = graph_task_reader()
        begin, finish = guard(self._begin_forward), guard(self._end_forward)

        def __call__(module: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if is_compiling() or depth.forward or not recorder.active:
                return original(module, *args, **kwargs)
            slot = begin(module)
            depth.forward = 1
            try:
                return original(module, *args, **kwargs)
            finally:
                depth.forward = 0
                if slot is not None:
                    finish(slot)

        self._patches.replace(Module, "__call__", __call__)

    def _begin_forward(self, module: Any) -> Slot:
        import torch

        recorder = self._recorder
        if self._depth.backward or self._graph_task() != NO_GRAPH_TASK:
            phase = Phase.RECOMPUTE
        elif torch.is_grad_enabled() or module.training:
            phase = Phase.FORWARD
            recorder.before_work()
        else:
            phase = Phase.EVALUATION
        if phase is not Phase.RECOMPUTE:
            self._callers.add(threading.get_ident())
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

        depth, recorder = self._depth, self._recorder
        begin, finish = guard(self._begin_backward), guard(self._end_backward)

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or depth.backward or not recorder.active:
                return original(*args, **kwargs)
            slot, outer = begin(), depth.forward
            depth.backward, depth.forward = 1, 0
            try:
                return original(*args, **kwargs)
            finally:
                finish(slot)
                depth.backward, depth.forward = 0, outer

        return backward

    def _begin_backward(self) -> Slot:
        recorder = self._recorder
        recorder.steps.trained()
        return recorder.writer().begin(Kind.PHASE, Phase.BACKWARD, recorder.names.intern("backward"))

    def _end_backward(self, slot: Slot | None) -> None:
        for listener in self._after_backward:
            listener()
        if slot is not None:
            end(slot)
            self._ended(Phase.BACKWARD)

    def _hook_optimizers(self) -> None:
        """While torch.compile traces an optimizer our hooks are not there: they would break its graph."""
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
        zeroed = guard(recorder.steps.zeroed)

        @functools.wraps(original)
        def zero_grad(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = phased(owner, *args, **kwargs)
            if recorder.active and not is_compiling():
                zeroed(owner)
            return result

        return zero_grad

    def _begin_optimizer(self, optimizer: Any) -> None:
        recorder = self._recorder
        if recorder.active:
            recorder.steps.stepping()
            name = recorder.names.intern(type(optimizer).__name__)
            self._open_optimizers[id(optimizer)] = recorder.writer().begin(Kind.PHASE, Phase.OPTIMIZER, name)

    def _end_optimizer(self, optimizer: Any) -> None:
        slot = self._open_optimizers.pop(id(optimizer), None)
        if slot is not None:
            end(slot)
            self._recorder.steps.stepped(optimizer)
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
