"""Spans of the model's blocks, forward and backward.

The blocks are detected: the children of the outermost containers that hold several modules of one class (the layers of
a transformer). Alternatively the caller gives a depth. Nothing is attached to the modules themselves, because it would
be copied and saved with them. A block's backward is seen by a hook on autograd's node behind its output: one on the
tensor would be missing where the training saves it, and torch would warn.
"""

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

from traincope.events import Kind, Phase
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard, meter
from traincope.record.instrumentation.torch_private import hide_from_compiler, without_functions
from traincope.record.segments.slots import Slot, end, end_abandoned
from traincope.record.session.recorder import Recorder

MIN_BLOCKS = 2
"""Minimum number of modules of one class that make a container's children blocks."""


class Modules:
    """Hook on the calls of modules, for blocks only."""

    name = "modules"
    level = 2

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._blocks: dict[int, tuple[weakref.ref[Any], int]] = {}
        """Identity of a block -> a reference to it, and the number of its name."""
        self._roots: dict[int, weakref.ref[Any]] = {}
        self._open: dict[int, Slot] = {}
        """Number of a block's name -> its open record. If its hook was interrupted, the next one closes it."""
        self._backward: Slot | None = None
        """The block whose backward is running."""

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        blocks, begin = self._blocks, guard(self._begin, every=SAMPLING_INTERVAL)

        def begins(module: Any, is_root: bool) -> Slot | None:
            """Pass the guard only where there is something to do: most modules are inside of blocks."""
            if recorder.detailed and (is_root or id(module) in blocks):
                return begin(module, is_root)
            return None

        hide_from_compiler(begins, calls_too=True)
        self.begins, self.ended = begins, guard(self._end, every=SAMPLING_INTERVAL)
        self._reached = guard(self._gradients_reached, every=SAMPLING_INTERVAL)
        self._phases.observe_modules(self)
        self._phases.after_backward(self._end_backward)

    def remove(self) -> None:
        self._phases.ignore_modules(self)
        self._blocks.clear()
        self._roots.clear()
        self._open.clear()

    def _find(self, root: Any) -> None:
        """Find blocks in a root module at its first call."""
        known = self._roots.get(id(root))
        if known is not None and known() is root:
            return
        self._roots[id(root)] = weakref.ref(root)
        depth = self._recorder.module_depth
        for name, block in find_blocks(root) if depth is None else find_at(root, depth=depth):
            number = self._recorder.names.intern(f"{name} ({type(block).__name__})")
            self._blocks[id(block)] = (weakref.ref(block), number)

    def _begin(self, module: Any, is_root: bool) -> Slot | None:
        if is_root:
            self._find(module)
        block = self._blocks.get(id(module))
        if block is None:
            return None
        reference, number = block
        if reference() is not module:
            del self._blocks[id(module)]
            return None
        abandoned = self._open.get(number)
        if abandoned is not None:
            end_abandoned(abandoned, meter.interrupted_ns)
        slot = self._open[number] = self._recorder.writer().begin(Kind.SPAN, Phase.FORWARD, number)
        return slot

    def _end(self, slot: Slot, module: Any, _args: tuple[Any, ...], result: Any) -> None:
        end(slot)
        number = self._blocks[id(module)][1]
        self._open.pop(number, None)
        with without_functions():
            tensor = first_tensor(result)
            if tensor is not None and tensor.requires_grad and tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(partial(self._reached, number))

    def _gradients_reached(self, number: int, _gradients: Any) -> None:
        """Note the gradients of a block's output: its backward begins, and that of the next block has ended."""
        if self._recorder.detailed:
            self._end_backward()
            self._backward = self._recorder.writer().begin(Kind.SPAN, Phase.BACKWARD, number)

    def _end_backward(self) -> None:
        if self._backward is not None:
            end(self._backward)
            self._backward = None


def find_blocks(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield (qualified name, module) of every block below `root`, outermost first."""
    waiting = [("", root)]
    while waiting:
        prefix, module = waiting.pop(0)
        children = [(f"{prefix}.{name}" if prefix else name, child) for name, child in module.named_children()]
        kinds = [type(child) for _, child in children]
        for name, child in children:
            has_parameters = next(child.parameters(), None) is not None
            if has_parameters and kinds.count(type(child)) >= MIN_BLOCKS:
                yield name, child
            else:
                waiting.append((name, child))


def find_at(root: Any, *, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield (qualified name, module) at `depth` below `root`, or of a leaf above that depth; with parameters only."""
    for name, module in root.named_modules():
        below = name.count(".") + 1 if name else 0
        ends_before = 0 < below < depth and next(module.children(), None) is None
        if (below == depth or ends_before) and next(module.parameters(), None) is not None:
            yield name, module


def first_tensor(result: Any) -> Any:
    """Return the tensor that a module returns, or the first object of a list or tuple if it is one; otherwise None.

    Other objects are not asked what they are: some make whatever they are asked for.
    """
    from torch import Tensor

    while issubclass(type(result), (list, tuple)) and result:
        result = result[0]
    return result if issubclass(type(result), Tensor) else None
