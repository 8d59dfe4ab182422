"""Hook on parameters that an optimizer trains next to those of FSDP's or DDP's units, and that are in no unit; or on
all of them, if a training of several ranks has no units.

Nothing reduces their gradients or makes them equal, unless the training does it itself. A few sums over some of their
values, with random signs, are recorded before the first step of the optimizer and after steps 1, 2, 4, 8, ...: the
analysis compares them between ranks. No device is waited for.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traincope.events import OUTSIDE_UNITS
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.torch_private import has_dispatch_mode, unit_ranks, without_functions
from traincope.record.session.recorder import Recorder
from traincope.record.state.checksum import is_dense
from traincope.record.state.host_copy import HostCopy, is_capturing
from traincope.record.state.replicas import known_parameters

MAX_READ = 8
"""Parameters that are read, spread over all that are in no unit."""
VALUES = 16
"""Values that are read of each, spread over all of its elements."""
DEVICES = ("cpu", "cuda")
MAX_LOOKS = 8
"""Optimizers that are looked at: trainings may make one per parameter, or per step."""
SUMS = 4
"""Sums of these values, each with its own signs: their differences have the size of those of the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Units:
    """Units of the modules that the training called."""

    name: str
    number: int
    ranks: tuple[int, ...]
    """Ranks that every unit has."""
    parameters: frozenset[int]
    """Identities of all parameters in them, also of those that a unit ignores on purpose."""


class OutsideUnits:
    """Hook on optimizers and root modules, through `Phases`."""

    name = "outside_units"
    level = 1

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._read: list[Any] = []
        """Weak references to the parameters that are read."""
        self._signs: Any = None
        """Tensor of shape (SUMS, number of values), the same on all ranks."""
        self._steps_to_next = 1
        self._num_looks = 0
        self._under_way: deque[tuple[int, HostCopy]] = deque()
        """Step and values, in order. They are written once they have arrived."""
        self._look, self._take_values = guard(self._look_at), guard(self._take)
        self._recorder: Recorder | None = None

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._phases.before_first_step(self._look)

    def remove(self) -> None:
        self._phases.ignore_first_steps(self._look)
        if self._recorder is not None:
            self._recorder.remove_listener(self._check)
        try:
            self._write_arrived()
        finally:  # a broken device raises
            self._read, self._signs = [], None
            self._under_way.clear()

    def _look_at(self, optimizer: Any) -> None:
        """Note what is in no unit, before the optimizer's first step. Only one optimizer is watched."""
        assert self._recorder is not None
        if self._read or self._num_looks >= MAX_LOOKS or is_capturing() or has_dispatch_mode():
            return
        self._num_looks += 1
        units = _units(self._phases.modules) or _no_units()
        if len(units.ranks) < 2:
            return
        trained = {id(each): each for group in optimizer.param_groups for each in group["params"]}
        outside = [each for number, each in trained.items() if number not in units.parameters and _has_gradient(each)]
        spread = (
            [outside[at * len(outside) // MAX_READ] for at in range(MAX_READ)] if len(outside) > MAX_READ else outside
        )
        read = [each for each in spread if _values(each) is not None]
        if not read or (units.number and not units.parameters & trained.keys()):
            return
        names = known_parameters(self._phases.modules).names
        details = {
            "of": units.name,
            "units": units.number,
            "replicas": (units.ranks[0], units.ranks[-1], len(units.ranks)),
            "parameters": len(outside),
            "bytes": sum(each.numel() * each.element_size() for each in outside),
            "names": [names.get(id(each), f"a parameter of shape {tuple(each.shape)}") for each in read],
        }
        from torch.utils.weak import TensorWeakRef

        self._recorder.event(OUTSIDE_UNITS, details)
        self._read = [TensorWeakRef(each) for each in read]
        self._take_values()
        self._recorder.between_detailed_steps(self._check)

    def _check(self) -> int:
        """Read after a step. Returns the next one to look at."""
        assert self._recorder is not None
        self._take_values()
        step = self._recorder.shared.step + self._steps_to_next
        self._steps_to_next *= 2
        return step

    def _take(self) -> None:
        import torch

        assert self._recorder is not None
        read = [each() for each in self._read]
        if is_capturing() or has_dispatch_mode() or any(each is None for each in read):
            return
        self._write_arrived()
        with without_functions(), torch.no_grad():
            values = [_values(each) for each in read]
            if all(each is not None and each.device == values[0].device for each in values):
                self._under_way.append((self._recorder.shared.step, HostCopy(self._sums(torch.cat(values)))))
        self._write_arrived()

    def _sums(self, values: Any) -> Any:
        import torch

        if self._signs is None:
            signs = np.random.default_rng(0).choice((-1.0, 1.0), (SUMS, len(values)))
            self._signs = torch.from_numpy(signs)
            if values.device.type == "cuda":  # a copy of memory that is not pinned waits for the stream
                self._signs = self._signs.pin_memory().to(values.device, non_blocking=True)
        return (self._signs * values).sum(dim=1)

    def _write_arrived(self) -> None:
        while self._recorder is not None and self._under_way and self._under_way[0][1].arrived:
            step, copy = self._under_way.popleft()
            self._recorder.event(OUTSIDE_UNITS, {"step": step, "sums": copy.tensor.tolist()})


def _units(roots: Iterable[Any]) -> _Units | None:
    ranks: set[int] | None = None
    parameters: set[int] = set()
    name, number = "", 0
    for root in roots:
        for module in root.modules():
            of_unit = unit_ranks(module)
            if of_unit is not None:
                parameters.update(map(id, module.parameters()))
                if of_unit[1]:
                    name, number = of_unit[0], number + 1
                    ranks = set(of_unit[1]) if ranks is None else ranks & set(of_unit[1])
    if ranks is None:
        return None
    return _Units(name=name, number=number, ranks=tuple(sorted(ranks)), parameters=frozenset(parameters))


def _no_units() -> _Units:
    """All ranks of the default group, if there is one."""
    import torch.distributed as dist

    size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    return _Units(name="", number=0, ranks=tuple(range(size)), parameters=frozenset())


def _has_gradient(parameter: Any) -> bool:
    return parameter.requires_grad and parameter.is_leaf and parameter.grad is not None


def _values(parameter: Any) -> Any:
    """Values of this rank's part of a parameter, as float64 on its device; None if it cannot be read as it lies."""
    import torch

    local: Any = parameter.detach()
    local = local.to_local() if hasattr(local, "placements") else local
    is_plain: Sequence[bool] = (
        type(local) is torch.Tensor,
        local.layout is torch.strided,
        not local.is_complex(),
        local.device.type in DEVICES,
    )
    if not all(is_plain) or not local.numel() or not is_dense(local):
        return None
    apart = max(local.numel() // VALUES, 1)
    return local.as_strided((min(VALUES, local.numel()),), (apart,)).to(torch.float64)
