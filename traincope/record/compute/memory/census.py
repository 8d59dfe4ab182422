"""A census of all live tensors when the memory of a rank grows: which shapes become more, and what holds them.

The agent finds the growth and requests a window (`Cause.MEMORY_GROWTH`). Each rank counts its tensors where the window
begins and `NUM_STEPS` later, and records the groups of one shape, dtype and device that have grown. Between two steps
the training thread waits for both: some 30 ns for each object of Python's, and 70 ns more for each object and
level of holders. The event has the CPU time that it took.

The census sees tensors that Python holds. A tensor that only autograd's C++ graph holds is not among them, but what
Python holds of such a graph is: for example losses whose graphs were never released. What the training hides from the
collector by `gc.freeze()` is not seen either, neither as a tensor nor as a holder.
"""

import gc
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from time import thread_time_ns
from types import ModuleType
from typing import Any

from traincope.events import BLOCK_STEPS, TENSOR_CENSUS
from traincope.record.compute.memory.local_holders import local_holder, place_of_growth
from traincope.record.session.recorder import Recorder
from traincope.store.job.requests import Cause

NUM_STEPS = 4 * BLOCK_STEPS
"""Steps between the two counts. They end where a block of steps begins."""
MAX_GROUPS = 8
"""Number of grown groups that are recorded, those with most bytes."""
MAX_CENSUSES = 4
"""Number of censuses of one run."""
MAX_FOLLOWED = 4
"""New tensors whose holders are looked for. Each look passes all objects of the process; autograd's own have none."""
MAX_HELD_GROUPS = 5
"""Groups whose holders are looked for, until one is found."""
MAX_LEVELS = 4
"""Number of holders that are followed from a tensor, each the holder of the one before."""

CONTAINERS = (list, dict, tuple, set, deque)

Group = tuple[Any, Any, Any]
"""Shape, dtype and device of a tensor, as torch has them: their names are longer to make than to compare."""


@dataclass(slots=True)
class Counted:
    """The live tensors at one instant."""

    step: int
    groups: dict[Group, set[int]] = field(default_factory=dict)
    """Identities of each group's tensors. A later tensor can have the identity of one that is gone; but as many as a
    group has grown by have identities that it did not have.
    """


class Census:
    """Counter of live tensors in the windows that growing memory opens."""

    def __init__(self, recorder: Recorder, *, device_type: str) -> None:
        self._recorder, self._device_type = recorder, device_type
        self._before: Counted | None = None
        self._done = 0
        self._own_ns = 0

    def between_blocks(self) -> None:
        """Count, if a window for growing memory begins here, or if its census ends here."""
        recorder, step = self._recorder, self._recorder.shared.step
        before = self._before
        if before is None:
            causes = {request.cause for request in recorder.control.requests_at(step)}
            if Cause.MEMORY_GROWTH in causes and self._done < MAX_CENSUSES:
                self._before = self._timed_count(step)
        elif step >= before.step + NUM_STEPS:
            self._before, self._done = None, self._done + 1
            self._write(before, self._timed_count(step))

    def _timed_count(self, step: int) -> Counted:
        began_ns = thread_time_ns()
        counted = count(step, device_type=self._device_type)
        self._own_ns += thread_time_ns() - began_ns
        return counted

    def _write(self, before: Counted, after: Counted) -> None:
        began_ns = thread_time_ns()
        grown = growth(before, after)[:MAX_GROUPS]
        groups = [named(*each) for each in grown]
        for place, (group, *_) in enumerate(grown[:MAX_HELD_GROUPS]):
            groups[place] |= held(before, group, follow=MAX_FOLLOWED if place == 0 else 1)
            if groups[place]["held_by"]:  # the others may be in the graph of these, where Python holds nothing
                break
        seconds = (self._own_ns + thread_time_ns() - began_ns) / 1e9
        self._own_ns = 0
        details = {"first_step": before.step, "last_step": after.step, "groups": groups, "seconds": seconds}
        self._recorder.event(TENSOR_CENSUS, details)


def count(step: int, *, device_type: str) -> Counted:
    """Count the live tensors of one kind of device. Subclasses of torch's own types are left out: a DTensor's local
    tensor is counted by itself.
    """
    counted = Counted(step)
    for tensor in _tensors(device_type):
        counted.groups.setdefault(_group(tensor), set()).add(id(tensor))
    return counted


def growth(before: Counted, after: Counted) -> list[tuple[Group, int, int]]:
    """Groups with more tensors after than before, and how many tensors and bytes more; most bytes first.

    Bytes of a view are its own, not its storage's.
    """
    grown = []
    for group, identities in after.groups.items():
        shape, dtype, _ = group
        number = len(identities) - len(before.groups.get(group, ()))
        if number > 0:
            grown.append((group, number, number * shape.numel() * dtype.itemsize))
    return sorted(grown, key=lambda each: -each[2])


def named(group: Group, tensors: int, num_bytes: int) -> dict[str, Any]:
    """The growth of a group as details of an event."""
    shape, dtype, device = group
    kind = {"shape": list(shape), "dtype": str(dtype).removeprefix("torch."), "device": str(device)}
    return {**kind, "tensors": tensors, "bytes": num_bytes}


def held(before: Counted, group: Group, *, follow: int = MAX_FOLLOWED) -> dict[str, Any]:
    """Name what holds a new tensor of a group, innermost first, and whether the tensor holds a graph.

    The name is empty if nothing that Python tracks holds one.
    """
    known = before.groups.get(group, ())
    new = (each for each in _tensors(group[2].type) if _group(each) == group and id(each) not in known)
    followed = list(islice(new, follow))
    has_graph = any(tensor.grad_fn is not None for tensor in followed)
    while followed:
        tensor = followed.pop(0)
        if names := _holders(tensor):
            return {"held_by": ", in ".join(names), "has_graph": has_graph}
    return {"held_by": "", "has_graph": has_graph}


def _group(tensor: Any) -> Group:
    return tensor.shape, tensor.dtype, tensor.device


def _tensors(device_type: str) -> Iterator[Any]:
    """Yield the live tensors of torch's own types. The types are compared by identity, which calls no foreign code."""
    from torch import Tensor
    from torch.nn import Parameter

    every = gc.get_objects()
    tensors = [each for each in every if type(each) is Tensor or type(each) is Parameter]
    del every
    while tensors:
        tensor = tensors.pop()
        if tensor.device.type == device_type:
            yield tensor


def _holders(tensor: Any) -> list[str]:
    """Follow the holders of a tensor up to a module, an object or a local variable with a name.

    Frames of running functions hold their variables out of the collector's sight.
    """
    names: list[str] = []
    held = tensor
    for _ in range(MAX_LEVELS):
        # Referrers of this function are out of sight for the same reason.
        holder = next((each for each in gc.get_referrers(held) if issubclass(type(each), CONTAINERS)), None)
        if holder is None:
            owner = next((each for each in gc.get_referrers(held) if _dictionary(each) is not None), None)
            named = local_holder(held) if owner is None else _attribute(owner, held)
            return [*names, *filter(None, [named])]
        owner = next((each for each in gc.get_referrers(holder) if _dictionary(each) is holder), None)
        if owner is not None:
            return [*names, _attribute(owner, held)]
        names.append(f"a {type(holder).__name__}" + (f" of {len(holder)}" if len(holder) > 1 else ""))
        held = holder
    return names


def _dictionary(candidate: Any) -> dict[str, Any] | None:
    """Return an object's attributes without calling code of its class."""
    try:
        attributes = object.__getattribute__(candidate, "__dict__")
    except AttributeError:
        return None
    return attributes if type(attributes) is dict else None


def _attribute(owner: Any, held: Any) -> str:
    """Name a module's variable, or an object's attribute by its class."""
    attributes = _dictionary(owner) or {}
    name = next((str(key) for key, value in tuple(attributes.items()) if value is held), "?")
    if isinstance(owner, ModuleType):
        module = next((key for key, value in tuple(sys.modules.items()) if value is owner), "?")
        return f"{module}.{name}{place_of_growth(name)}"
    return f"{type(owner).__module__}.{type(owner).__qualname__}.{name}{place_of_growth(name)}"
