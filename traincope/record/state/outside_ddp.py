"""Hook on parameters that the optimizer trains and DDP does not reduce.

DDP reduces the parameters that needed gradients when it was made. Adapters that come later, and layers that are
unfrozen later, have gradients of their own on each rank, and nothing says so.
"""

import functools
import weakref
from typing import Any

from traincope.events import OUTSIDE_DDP
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.session.recorder import Recorder


class OutsideDDP:
    """Hook on DistributedDataParallel's constructor; the parameters are compared after steps 1, 2, 4, 8, ..."""

    name = "outside_ddp"
    level = 1

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._patches = Patches()
        self._reduced: weakref.WeakKeyDictionary[Any, frozenset[int]] = weakref.WeakKeyDictionary()
        """Wrapper -> identities of the parameters that it reduces."""
        self._steps_to_next = 1
        self._recorder: Recorder | None = None

    def install(self, recorder: Recorder) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self._recorder = recorder
        original, note = DistributedDataParallel.__init__, guard(self._made)

        @functools.wraps(original)
        def made(wrapper: Any, /, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            note(wrapper)

        self._patches.replace(DistributedDataParallel, "__init__", made)
        self._compare_wrappers = guard(self._compare_all)

    def remove(self) -> None:
        if self._recorder is not None:
            self._recorder.remove_listener(self._check)
        self._patches.restore()
        self._reduced.clear()

    def _made(self, wrapper: Any) -> None:
        self._reduced[wrapper] = frozenset(id(each) for each in wrapper.module.parameters() if each.requires_grad)
        if self._recorder is not None:
            self._recorder.between_detailed_steps(self._check)

    def _check(self) -> int:
        """Compare after a step. Returns the next one to look at."""
        assert self._recorder is not None
        if self._reduced:
            self._compare_wrappers()
        step = self._recorder.shared.step + self._steps_to_next
        self._steps_to_next *= 2
        return step

    def _compare_all(self) -> None:
        groups = (group for optimizer in self._phases.optimizers for group in optimizer.param_groups)
        trained = {id(each) for group in groups for each in group["params"]}
        for wrapper, reduced in tuple(self._reduced.items()):
            self._compare(wrapper, reduced, trained)

    def _compare(self, wrapper: Any, reduced: frozenset[int], trained: set[int]) -> None:
        ignored = set(wrapper.parameters_to_ignore)
        needed = {name: each for name, each in wrapper.module.named_parameters() if each.requires_grad}
        outside = {
            name: each
            for name, each in needed.items()
            if id(each) in trained and id(each) not in reduced and name not in ignored
        }
        if outside and self._recorder is not None:
            del self._reduced[wrapper]
            details = {
                "parameters": len(outside),
                "bytes": _num_bytes(outside.values()),
                "reduced_bytes": _num_bytes(each for each in needed.values() if id(each) in reduced),
                "first": next(iter(outside)),
            }
            self._recorder.event(OUTSIDE_DDP, details)


def _num_bytes(parameters: Any) -> int:
    return sum(each.numel() * each.element_size() for each in parameters)
