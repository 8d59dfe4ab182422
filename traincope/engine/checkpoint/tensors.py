"""A trainer's state by name: parameters, AdamW's moments and scales, whole or sharded as they lie on this rank.

Names do not depend on the layout, so a training with other ranks finds its pieces. Ranks of a pipeline have the names
of their stages; with ZeRO-1 each rank has the moments of its parameters.
"""

from typing import Any

import torch
from torch import Tensor, nn

from traincope.engine.optimizer.adamw_state import MOMENTS
from traincope.engine.optimizer.host_adamw import HostAdamW
from traincope.engine.trainer import Trainer

SCALING = "scaling."
"""Prefix of the scales of fp16 and fp8, which other formats neither save nor need."""


def tensors_of(trainer: Trainer) -> dict[str, Tensor]:
    """Name -> the trainer's own tensor. What is written into it changes the trainer; see `after_loading`."""
    names = {parameter: name for name, parameter in trainer.parameters.items()}
    tensors: dict[str, Tensor] = {f"model.{name}": parameter.detach() for name, parameter in trainer.parameters.items()}
    for parameter, state in _states(_updater(trainer)).items():
        tensors |= {f"optimizer.{names[parameter]}.{entry}": value for entry, value in state.items()}
    tensors |= {f"{SCALING}{name}": operand.history for name, operand in trainer.operands.items()}
    if trainer.loss_scaler is not None:
        tensors[f"{SCALING}loss"] = trainer.loss_scaler.save()
    return tensors


def after_loading(trainer: Trainer) -> None:
    """Make the optimizer and the scale of the loss use the new values."""
    if isinstance(trainer.optimizer, HostAdamW):
        trainer.optimizer.copy_parameters()
    if trainer.loss_scaler is not None:
        trainer.loss_scaler.load()


def _updater(trainer: Trainer) -> torch.optim.Optimizer:
    """The optimizer of this rank's parameters. ZeRO-1 wraps it."""
    optimizer: Any = trainer.optimizer
    updater: torch.optim.Optimizer = optimizer.optim if trainer.config.ddp.shard_optimizer else optimizer
    return updater


def _states(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, dict[str, Tensor]]:
    """State of each parameter that this rank updates. torch creates it in the first step; before, it is all zeros."""
    states: dict[nn.Parameter, dict[str, Tensor]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.zeros((), device=parameter.device)
                state |= {name: torch.zeros_like(parameter, requires_grad=False) for name in MOMENTS}
            states[parameter] = state
    return states
