"""Hook on modules: where the first value of a step that is not finite, or far too large, appears on this rank.

It looks at the outputs of the innermost modules, at the gradients of these outputs, and at each parameter's gradient
right after it was accumulated. DDP averages that gradient over ranks afterwards, so one rank's NaN is still its own.
It is opt-in (`trace_non_finite`), because it reads all of these values once more in every step.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from traincope.arrays import Floats
from traincope.events import FIRST_JUMP, FIRST_NOT_FINITE, NO_STEP
from traincope.record.compute.modules import first_tensor
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import guard
from traincope.record.session.recorder import Recorder
from traincope.record.state.host_copy import HostCopy, is_capturing
from traincope.record.state.replicas import without_wrappers

NOT_REQUESTED = "off: nothing to watch: trace_non_finite is not set"
OUTPUT, OUTPUT_GRADIENT, GRADIENT = "output", "gradient of the output", "gradient"
MAX_VALUES = 16_384
"""Most values that are looked at in a step. A bad value spreads, so it is in the first ones too, most likely."""
MAX_UNDER_WAY = 64
RECENT = 32
"""Number of steps before, with whose largest size a value is compared."""
MIN_STEPS = 16
"""Fewest steps that show what is usual."""
FACTOR = 8.0
"""Multiple of the largest recent size from which on a value is far above it. It leaves out the tails of gradients."""


class UsualSizes:
    """Largest sizes of the same values in the latest steps."""

    def __init__(self) -> None:
        self._places: Sequence[tuple[str, str]] = ()
        self._recent: deque[Floats] = deque(maxlen=RECENT)

    def first_jump(self, places: Sequence[tuple[str, str]], sizes: Floats) -> tuple[int, float] | None:
        """Return the position of a step's first value far above its usual size, and how many times that it is.

        The sizes become those of the latest step. Steps with other values than the one before begin anew.
        """
        if places != self._places:
            self._places = places
            self._recent.clear()
        usual = np.max(self._recent, axis=0) if len(self._recent) >= MIN_STEPS else np.zeros(len(sizes))
        self._recent.append(sizes)
        jumped = np.flatnonzero((usual > 0) & (sizes > FACTOR * usual))
        return (int(jumped[0]), float(sizes[jumped[0]] / usual[jumped[0]])) if len(jumped) else None


class NonFinite:
    """Hook on modules, and on the gradients of parameters."""

    name = "non_finite"
    level = 0

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._handles: list[Any] = []
        self._names: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
        """Modules of the roots that ran -> qualified name, None unless they are innermost ones."""
        self._roots: WeakSet[Any] = WeakSet()
        self._known_roots: WeakSet[Any] = WeakSet()
        self._step = NO_STEP
        """Step of the open step's first value."""
        self._values: list[tuple[str, str, Any]] = []
        """Values of the open step, in order: place, what it is, smallest and largest element (NaN if any is NaN)."""
        self._under_way: deque[tuple[int, list[tuple[str, str]], list[tuple[list[int], HostCopy]]]] = deque()
        self._was_finite = True
        self._usual = UsualSizes()

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        if not recorder.trace_non_finite:
            recorder.probes[self.name] = NOT_REQUESTED
            return
        from torch.nn.modules.module import register_module_forward_hook

        self._note, self._look = guard(self._note_value), guard(self._look_at)
        self._roots = self._phases.collect_roots()
        self._handles.append(register_module_forward_hook(self._after_forward))
        recorder.between_steps(self._step_ended)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._names.clear()
        self._known_roots.clear()
        if self._values or self._under_way:
            self._step_ended()

    def _after_forward(self, module: Any, _arguments: Any, output: Any) -> None:
        from torch import is_grad_enabled
        from torch.compiler import is_compiling

        if not is_compiling() and self._recorder.active and is_grad_enabled() and not self._phases.in_backward:
            self._look(module, output)

    def _look_at(self, module: Any, output: Any) -> None:
        if module not in self._names:
            self._learn()
        name, tensor = self._names.setdefault(module, None), first_tensor(output)
        if name is not None and tensor is not None and tensor.is_floating_point():
            self._note_value(name, OUTPUT, tensor)
            if tensor.requires_grad:
                tensor.register_hook(self._noting(name, OUTPUT_GRADIENT))

    def _learn(self) -> None:
        """Name the modules of new roots, and watch the gradients of their parameters."""
        for root in [root for root in self._roots if root not in self._known_roots]:
            self._known_roots.add(root)
            for name, module in root.named_modules():
                is_innermost = next(module.children(), None) is None
                self._names[module] = without_wrappers(name) or type(module).__name__ if is_innermost else None
            for name, parameter in root.named_parameters():
                if parameter.requires_grad and parameter.is_leaf:
                    self._handles.append(self._watch(parameter, without_wrappers(name)))

    def _watch(self, parameter: Any, name: str) -> Any:
        note = self._noting(name, GRADIENT)
        return parameter.register_post_accumulate_grad_hook(lambda parameter: note(parameter.grad))

    def _noting(self, name: str, what: str) -> Callable[[Any], None]:
        def note(gradient: Any) -> None:
            if gradient is not None:
                self._note(name, what, gradient)

        return note

    def _note_value(self, name: str, what: str, tensor: Any) -> None:
        import torch

        if len(self._values) >= MAX_VALUES or is_capturing():
            return
        if not self._values:
            self._step = self._recorder.shared.step
        with torch.no_grad():
            local = (tensor.to_local() if hasattr(tensor, "placements") else tensor).detach()
            if local.numel():
                self._values.append((name, what, torch.stack(torch.aminmax(local))))

    def _step_ended(self) -> None:
        """Send the values of the step that has ended to the host, and judge those that have arrived."""
        import torch

        values, self._values = self._values, []
        if values and len(self._under_way) < MAX_UNDER_WAY and not is_capturing():
            positions: dict[Any, list[int]] = {}
            for at, (_, _, value) in enumerate(values):
                positions.setdefault(value.device, []).append(at)
            copies = [
                (ats, HostCopy(torch.stack([values[at][2].double() for at in ats]))) for ats in positions.values()
            ]
            self._under_way.append((self._step, [(name, what) for name, what, _ in values], copies))
        while self._under_way and not is_capturing() and all(copy.arrived for _, copy in self._under_way[0][2]):
            self._judge(*self._under_way.popleft())

    def _judge(self, step: int, places: list[tuple[str, str]], copies: list[tuple[list[int], HostCopy]]) -> None:
        """Write the first place whose values are not all finite, unless the step before had one too.

        In a finite step, write the first place whose values are far above their usual size.
        """
        extremes = np.zeros((len(places), 2))
        for ats, copy in copies:
            extremes[ats] = copy.tensor.numpy()
        bad = np.flatnonzero(~np.isfinite(extremes).all(axis=1))
        if len(bad) and self._was_finite:
            name, what = places[int(bad[0])]
            self._recorder.event(FIRST_NOT_FINITE, {"step": step, "place": name, "of": what})
        self._was_finite = not len(bad)
        jump = self._usual.first_jump(places, np.abs(extremes).max(axis=1)) if len(places) and not len(bad) else None
        if jump is not None:
            name, what = places[jump[0]]
            self._recorder.event(FIRST_JUMP, {"step": step, "place": name, "of": what, "times": jump[1]})
