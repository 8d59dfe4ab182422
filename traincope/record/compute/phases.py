"""Hook on phases: forward, backward, recomputation, optimizer, evaluation.

Only outermost calls become spans: the root module's forward, a whole backward, an optimizer's step. A module that runs
inside a backward with gradients enabled is being recomputed.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any, Protocol

from traincope.events import GRADIENT_FUNCTIONS, ZEROING, Kind, Phase
from traincope.record.compute.memory.used import Used
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard, meter
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import (
    autograd_engine,
    graph_task_reader,
    import_for_profiler,
    is_plain_module_call,
    profiler_start,
)
from traincope.record.segments.slots import Slot, end_abandoned
from traincope.record.session.recorder import Recorder

FORWARD, BACKWARD, RECOMPUTE = int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.RECOMPUTE)
OPTIMIZER, EVALUATION = int(Phase.OPTIMIZER), int(Phase.EVALUATION)
PHASE = int(Kind.PHASE)
"""Plain numbers: looking up an enum's member costs as much as writing a field."""

NO_GRAPH_TASK = -1
"""Autograd's answer outside a backward. On a GPU backward runs on threads of its own."""


class _Caller:
    """A thread that calls modules. Its thread-local data hold it, so it goes with the thread."""

    __slots__ = ("__weakref__", "backward", "forward", "is_known", "open")

    def __init__(self) -> None:
        self.is_known = False
        """True if it is in the set of callers, which costs more to ask."""
        self.forward = 0
        """Depth of calls of modules."""
        self.backward = 0
        """Depth of backward calls."""
        self.open: dict[tuple[int, int], Slot] = {}
        """Phase and name -> the open record. If an exception interrupted its hook, the next one closes it."""


class _Thread(threading.local):
    """Each look-up here costs as much as a function's call, so there is one attribute."""

    def __init__(self) -> None:
        self.caller = _Caller()


class PhaseMarks(Protocol):
    """Marks of phases and pipeline actions on the compute stream of a GPU."""

    @property
    def begin_phase(self) -> Callable[[object, int, int], None]:
        """Mark the begin of a phase, given a key that lives until its end, the phase and a name."""

    @property
    def end_phase(self) -> Callable[[object], None]:
        """Mark the end of the phase that began with this key."""

    @property
    def begin_action(self) -> Callable[[object, int, int, int, int, int], None]:
        """Mark the begin of an action, given such a key, the phase, a name, the schedule, microbatch and stage."""

    @property
    def end_action(self) -> Callable[[object], None]:
        """Mark the end of the action that began with this key."""

    @property
    def extend_action(self) -> Callable[[], None]:
        """Mark the end of the latest action anew."""


class ModuleCalls(Protocol):
    """An observer right before and right after each call of a module."""

    def begins(self, module: Any, is_root: bool) -> Any:
        """Return what `ended` needs, or None if it need not be called. Must not raise.

        `is_root`: no other module's call is around this one.
        """

    def ended(self, begun: Any, module: Any, args: tuple[Any, ...], result: Any) -> None:
        """`begun`: what `begins` returned. `result`: None if the call raised. Must not raise."""


class OptimizerSteps(Protocol):
    """An observer right before and right after each optimizer's step, outside of its phase."""

    def begins(self, optimizer: Any) -> None: ...

    def ended(self, optimizer: Any) -> None: ...


class Phases:
    """Hook on modules, autograd and optimizers."""

    name = "phases"
    level = 0

    def __init__(self) -> None:
        self._patches = Patches()
        self._handles: list[Any] = []
        self._thread = _Thread()
        self._graph_task: Callable[[], int] = lambda: NO_GRAPH_TASK
        self._open_optimizers: dict[int, Slot] = {}
        self._after_backward: list[Callable[[], None]] = []
        self._after_phase: list[Callable[[Phase], None]] = []
        self._before_first_step: list[Callable[[Any], None]] = []
        self._callers: weakref.WeakSet[_Caller] = weakref.WeakSet()
        """Threads that have called a root module, without autograd's threads, which recompute."""
        self.raised_in = Phase.NONE
        """The latest phase, if an exception left it; Phase.NONE if it ended well."""
        self.modules, self.optimizers = Used(), Used()
        """Root modules that were called; optimizers that stepped, each with the number of its name."""
        self.loaders = Used()
        """Iterators of DataLoaders that gave a batch."""
        self.module_calls: tuple[ModuleCalls, ...] = ()
        """Observers of every module's call."""
        self.device: PhaseMarks | None = None
        """Marks on the compute stream. None outside windows, and unless the training uses a GPU."""
        self.optimizer_steps: OptimizerSteps | None = None
        self.roots: weakref.WeakSet[Any] | None = None
        """Root modules that were called in training, while these are collected."""

    @property
    def in_backward(self) -> bool:
        """Return whether the calling thread is inside a backward call, or runs a part of another thread's backward."""
        return self._thread.caller.backward > 0 or self._graph_task() != NO_GRAPH_TASK

    @property
    def in_forward(self) -> bool:
        """Return whether the calling thread is inside a module's call."""
        return self._thread.caller.forward > 0

    @contextmanager
    def set_apart(self) -> Iterator[None]:
        """Let modules and backward calls on the calling thread pass: they are not the training's."""
        caller = self._thread.caller
        forward, backward = caller.forward, caller.backward
        caller.forward = caller.backward = 1
        try:
            yield
        finally:
            caller.forward, caller.backward = forward, backward

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

    def forget(self, listener: Callable[[Phase], None]) -> None:
        """Call a listener of `after_phase` no longer."""
        if listener in self._after_phase:
            self._after_phase.remove(listener)

    def before_first_step(self, listener: Callable[[Any], None]) -> None:
        """Call `listener` with each optimizer before its first step. It must not raise."""
        self._before_first_step.append(listener)

    def ignore_first_steps(self, listener: Callable[[Any], None]) -> None:
        """Call a listener of `before_first_step` no longer."""
        if listener in self._before_first_step:
            self._before_first_step.remove(listener)

    def observe_modules(self, observer: ModuleCalls) -> None:
        """Let `observer` see every module's call. Repeated registrations count once."""
        if observer not in self.module_calls:
            self.module_calls = (*self.module_calls, observer)

    def ignore_modules(self, observer: ModuleCalls) -> None:
        """Let `observer` see the calls of modules no longer."""
        self.module_calls = tuple(other for other in self.module_calls if other is not observer)

    def collect_roots(self) -> "weakref.WeakSet[Any]":
        """Return the root modules that are called in training from now on. The set grows."""
        if self.roots is None:
            self.roots = weakref.WeakSet()
        return self.roots

    def begin(self, phase: int, name: int) -> Slot:
        """Begin a phase of the calling thread: its record, and its mark on the compute stream."""
        opened, key = self._thread.caller.open, (phase, name)
        abandoned = opened.get(key)
        if abandoned is not None:
            end_abandoned(abandoned, meter.interrupted_ns)
        begin_natively, slot = self._recorder.begin_phase_natively, None
        if begin_natively is not None:
            slot = begin_natively(phase, name, opened, key)
        if not slot:
            slot = opened[key] = self._recorder.threads.writer.begin_phase(phase, name)
        if self.device is not None:
            self.device.begin_phase(slot, phase, name)
        return slot

    def end(self, slot: Slot) -> None:
        """End the phase that `begin` began."""
        if self.device is not None:
            self.device.end_phase(slot)
        words, index = slot
        words[index] = monotonic_ns()
        opened = self._thread.caller.open
        for key, other in opened.items():
            if other is slot:
                del opened[key]  # a record that is kept keeps its segment mapped
                return

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._backward_name = recorder.names.intern("backward")
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
        self.module_calls, self.roots = (), None
        self._thread.caller.open.clear()
        for caller in tuple(self._callers):
            caller.is_known = False
        self._callers.clear()
        self.modules.clear()
        self.optimizers.clear()

    def _patch_forward(self) -> None:
        """Replace the function that every module's call enters.

        The replacement is the same number of frames deep as torch's function, so that modules can be nested as deep as
        without a run. Where it cannot do torch's part, it calls torch's function, which costs a frame per module: if
        another library has replaced that function, and under a profile function. torch's profiler finds modules by the
        code of torch's function, and reads the module from the local variable `self`.
        """
        from torch import is_grad_enabled
        from torch.compiler import is_compiling
        from torch.nn import Module

        original, thread, recorder, phases = Module.__call__, self._thread, self._recorder, self
        self._graph_task, self._is_grad_enabled = graph_task_reader(), is_grad_enabled
        begin = guard(self._begin_forward, every=SAMPLING_INTERVAL)
        finish = guard(self._end_forward, every=SAMPLING_INTERVAL)
        does_two_things, profile_function = is_plain_module_call(original), sys.getprofile

        def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            # `is_compiling` comes first: torch.compile would add guards for any condition before it.
            if is_compiling():
                return original(self, *args, **kwargs)
            caller = thread.caller
            is_root = not caller.forward and recorder.active
            if not (is_root or phases.module_calls):
                if does_two_things and profile_function() is None:
                    compiled = self._compiled_call_impl
                    return self._call_impl(*args, **kwargs) if compiled is None else compiled(*args, **kwargs)
                return original(self, *args, **kwargs)
            slot, raised, result, begun = None, True, None, []
            try:
                if is_root:
                    slot = begin(self)
                    caller.forward = 1
                observers = phases.module_calls  # read after `begin`, which may begin a counted step
                for observer in observers:
                    begun.append(observer.begins(self, is_root))
                if does_two_things and profile_function() is None:
                    compiled = self._compiled_call_impl
                    result = self._call_impl(*args, **kwargs) if compiled is None else compiled(*args, **kwargs)
                else:
                    result = original(self, *args, **kwargs)
                raised = False
                return result
            finally:
                if is_root:
                    caller.forward = 0
                    if slot is None:  # an exception of the training may have come before the slot
                        meter.interrupted_ns = monotonic_ns()
                try:
                    while begun:
                        of_observer = begun.pop()
                        if of_observer is not None:
                            observers[len(begun)].ended(of_observer, self, args, result)
                finally:  # an exception of the training may come above, too
                    if slot is not None:
                        finish(slot, raised)

        self._patches.replace(Module, "__call__", __call__)
        self._show_to_profiler(Module)

    def _show_to_profiler(self, module_class: Any) -> None:
        """Let torch's profiler find its own function when it starts.

        It looks up the code of `Module.__call__` once per process, and finds modules by it from then on.
        """
        owner, name = profiler_start()
        original, prepare = getattr(owner, name), guard(import_for_profiler)

        @functools.wraps(original)
        def start(*args: Any, **kwargs: Any) -> Any:
            prepare()
            with self._patches.set_aside(module_class, "__call__"):
                return original(*args, **kwargs)

        self._patches.replace(owner, name, start)

    def _begin_forward(self, module: Any) -> Slot:
        recorder, caller = self._recorder, self._thread.caller
        if caller.backward or self._graph_task() != NO_GRAPH_TASK:
            phase = RECOMPUTE
        else:
            if not caller.is_known:
                caller.is_known = True
                self._callers.add(caller)
            self.modules.add(module)
            if self._is_grad_enabled() or module.training:
                phase = FORWARD
                recorder.before_work()
                if self.roots is not None:
                    self.roots.add(module)
            else:
                phase = EVALUATION
                recorder.before_evaluation()
        name = recorder.names.intern(type(module).__name__)
        return self.begin(phase, name)

    def _end_forward(self, slot: Slot, raised: bool) -> None:
        self.raised_in = Phase.FORWARD if raised else Phase.NONE
        self.end(slot)
        if self._after_phase:
            self._ended(Phase.FORWARD)

    def _ended(self, phase: Phase) -> None:
        for listener in tuple(self._after_phase):
            listener(phase)

    def _patch_backward(self) -> None:
        """Replace what `torch.autograd.backward` and `grad` call: TorchScript and others know these by identity."""
        owners, name = autograd_engine()
        backward = self._backward(getattr(owners[0], name))
        for owner in owners:
            self._patches.replace(owner, name, backward)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch.compiler import is_compiling

        thread, recorder = self._thread, self._recorder
        begin = guard(self._begin_backward, every=SAMPLING_INTERVAL)
        finish = guard(self._end_backward, every=SAMPLING_INTERVAL)

        @functools.wraps(original)
        def backward(outputs: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not recorder.active:
                return original(outputs, *args, **kwargs)
            caller = thread.caller
            if caller.backward:
                return original(outputs, *args, **kwargs)
            slot, outer, raised = begin(outputs), caller.forward, True
            caller.backward, caller.forward = 1, 0
            try:
                result = original(outputs, *args, **kwargs)
                raised = False
                return result
            finally:
                try:
                    finish(slot, raised)
                finally:
                    caller.backward, caller.forward = 0, outer

        return backward

    def _begin_backward(self, outputs: object) -> Slot:
        self._recorder.before_backward(outputs)
        return self.begin(BACKWARD, self._backward_name)

    def _end_backward(self, slot: Slot | None, raised: bool) -> None:
        for listener in self._after_backward:
            listener()
        self._recorder.steps.backward_ended()
        self.raised_in = Phase.BACKWARD if raised else Phase.NONE
        if slot is not None:
            self.end(slot)
            if self._after_phase:
                self._ended(Phase.BACKWARD)

    def _hook_optimizers(self) -> None:
        """Hook optimizers. While torch.compile traces an optimizer our hooks do nothing: they would break its graph."""
        from torch.compiler import is_compiling
        from torch.nn import Module
        from torch.optim import optimizer

        begin = guard(self._begin_optimizer, every=SAMPLING_INTERVAL)
        finish = guard(self._end_optimizer, every=SAMPLING_INTERVAL)

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
        """Record the call at its end: no rank waits in it for another."""
        from torch.compiler import is_compiling

        recorder = self._recorder
        number, threads, steps = recorder.names.intern(ZEROING), recorder.threads, recorder.steps

        def end_zeroing(owner: Any, start_ns: int, key: object) -> None:
            if key is not None and self.device is not None:
                self.device.end_phase(key)
            threads.writer.write(PHASE, start_ns, monotonic_ns(), OPTIMIZER, number)
            if steps.awaits_zeroing:
                steps.gradients_zeroed(owner)

        def mark_zeroing() -> object:
            key = object()
            if self.device is not None:
                self.device.begin_phase(key, OPTIMIZER, number)
            return key

        mark = guard(mark_zeroing, every=SAMPLING_INTERVAL)
        finish = guard(end_zeroing, every=SAMPLING_INTERVAL)

        @functools.wraps(original)
        def zero_grad(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not recorder.active:
                return original(owner, *args, **kwargs)
            key = None if self.device is None else mark()
            start_ns = monotonic_ns()
            result = original(owner, *args, **kwargs)
            finish(owner, start_ns, key)
            return result

        return zero_grad

    def _begin_optimizer(self, optimizer: Any) -> None:
        recorder = self._recorder
        if recorder.active:
            if self.optimizer_steps is not None:
                self.optimizer_steps.begins(optimizer)
            name = self.optimizers.get(optimizer) or self._note_optimizer(optimizer)
            self._open_optimizers[id(optimizer)] = self.begin(OPTIMIZER, name)
            self.raised_in = Phase.OPTIMIZER  # torch calls no hook after a step that raises

    def _note_optimizer(self, optimizer: Any) -> int:
        """Note that the optimizer is used. Returns the number of its name."""
        self._recorder.steps.optimizer_steps()
        number = self._recorder.names.intern(type(optimizer).__name__)
        self.optimizers.add(optimizer, number)
        for listener in tuple(self._before_first_step):
            listener(optimizer)
        return number

    def _end_optimizer(self, optimizer: Any) -> None:
        slot = self._open_optimizers.pop(id(optimizer), None)
        if slot is not None:
            steps, self.raised_in = self._recorder.steps, Phase.NONE
            self.end(slot)
            steps.optimizer_stepped(optimizer)
            if self._after_phase:
                self._ended(Phase.OPTIMIZER)
            if self.optimizer_steps is not None:
                self.optimizer_steps.ended(optimizer)
            if steps.ends_with_update and not self.in_backward:
                self._recorder.update_ended()

    def _patch_gradient_functions(self) -> None:
        """Replace them where trainings find them. In the module that defines one, pickle finds one taken before."""
        from torch.nn import utils

        for name in GRADIENT_FUNCTIONS:
            if hasattr(utils, name):
                self._patches.replace(utils, name, self._as_optimizer_phase(getattr(utils, name), name))

    def _as_optimizer_phase(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        from torch.compiler import is_compiling

        recorder = self._recorder

        number = recorder.names.intern(name)

        def begin_part() -> Slot:
            return self.begin(OPTIMIZER, number)

        begin, finish = guard(begin_part, every=SAMPLING_INTERVAL), guard(self.end, every=SAMPLING_INTERVAL)

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
