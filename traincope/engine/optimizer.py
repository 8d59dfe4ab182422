"""AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) with a linear warm-up."""

from collections.abc import Iterable

import torch
from torch import nn

from traincope.engine.config import OptimizerConfig


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """Only matrices decay: pulling a norm's gain to zero would undo what it is there for."""
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    gains = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": gains, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, config: OptimizerConfig, *, step: int) -> None:
    """The rate of optimizer step `step`, counted from 1."""
    rate = config.lr * min(1.0, step / max(config.warmup, 1))
    for group in optimizer.param_groups:
        group["lr"] = rate
