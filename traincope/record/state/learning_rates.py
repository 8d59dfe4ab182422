"""Hook on learning rates of optimizers whose parameters DDP reduces.

DDP gives all replicas the same gradients. If a schedule depends on what a rank sees alone, such as its own loss, the
replicas take steps of different lengths, and nothing says so. The rates are read where a block of steps begins, more
rarely the longer the run, in the same steps on all ranks. No device is waited for.
"""

from dataclasses import dataclass
from itertools import count
from typing import Any

from traincope.events import BLOCK_STEPS, FIRST_BLOCKS, LEARNING_RATES
from traincope.record.compute.memory.used import Used
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.torch_private import has_dispatch_mode, without_functions
from traincope.record.session.recorder import Recorder

MAX_GROUPS = 16
"""With more parameter groups than this, the first ones are read."""
BITS = 3
"""After the first blocks, those are read whose numbers have no bit after the first `BITS`: four up to twice a number.
"""


def is_read(block: int) -> bool:
    """Return whether the rates are read at the begin of this block of steps."""
    return block < FIRST_BLOCKS or block & ((1 << (block.bit_length() - BITS)) - 1) == 0


@dataclass(frozen=True, slots=True)
class _Known:
    """An optimizer of a DDP model."""

    number: int
    """Position among such optimizers, in order of their first reading."""
    replicas: tuple[int, int, int]
    """First and last rank, and number, of the ranks over which DDP averages its gradients."""


class LearningRates:
    """Hook on optimizers and DDP models, through `Phases`."""

    name = "learning_rates"
    level = 1

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._known, self._numbers = Used(), count()
        self._recorder: Recorder | None = None
        self._read_optimizer = guard(self._read_one)
        """A failure, e.g. after the model's group is destroyed, does not concern the other optimizers."""

    def install(self, recorder: Recorder) -> None:
        import torch.distributed as dist

        if not dist.is_available():
            raise RuntimeError("this torch is built without torch.distributed")
        self._recorder = recorder
        recorder.between_blocks(self._read)

    def remove(self) -> None:
        if self._recorder is not None:
            self._recorder.remove_listener(self._read)
        self._known.clear()

    def _read(self) -> None:
        if self._recorder is not None and is_read(self._recorder.shared.step // BLOCK_STEPS):
            for optimizer in self._phases.optimizers:
                self._read_optimizer(optimizer)

    def _read_one(self, optimizer: Any) -> None:
        known = self._known.get(optimizer)
        if known is None:
            replicas = self._replicas(optimizer)
            if replicas is None:
                return
            known = _Known(next(self._numbers), replicas)
            self._known.add(optimizer, known)
        groups = optimizer.param_groups[:MAX_GROUPS]
        details = {
            "optimizer": known.number,
            "replicas": known.replicas,
            "parameters": [len(group["params"]) for group in groups],
            "rates": [plain_rate(group.get("lr")) for group in groups],
        }
        if self._recorder is not None:
            self._recorder.event(LEARNING_RATES, details)

    def _replicas(self, optimizer: Any) -> tuple[int, int, int] | None:
        """Return the ranks that get the same gradients; None if no model of DDP has the optimizer's parameters."""
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        first = next((each for group in optimizer.param_groups for each in group["params"]), None)
        for model in self._phases.modules:
            if isinstance(model, DistributedDataParallel) and any(each is first for each in model.module.parameters()):
                ranks = dist.get_process_group_ranks(model.process_group)
                return ranks[0], ranks[-1], len(ranks)
        return None


def plain_rate(rate: Any) -> float | None:
    """Return a learning rate; None if reading it would wait for a device, if a mode of the training would see it, or if
    it is no plain number.
    """
    import torch

    if isinstance(rate, int | float):
        return float(rate)
    if type(rate) is not torch.Tensor or has_dispatch_mode():
        return None
    with without_functions():
        return float(rate.detach()) if rate.device.type == "cpu" and rate.numel() == 1 else None
