"""AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) with a linear warm-up of the learning rate."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from traincope.engine.config import Config, OptimizerConfig
from traincope.engine.model.model import Block
from traincope.engine.optimizer.host_adamw import HostAdamW
from traincope.engine.optimizer.streamed_adamw import StreamedAdamW
from traincope.engine.ranks.mesh import Layout
from traincope.engine.ranks.torch_private import zero_redundancy_optimizer


def place_optimizer(modules: Iterable[nn.Module], config: Config, *, layout: Layout) -> torch.optim.Optimizer:
    """AdamW with its state where `[ddp]` and `[offload]` place it.

    That is with the parameters, spread over replicas, on the host, or in files. Raises TrainingError if a disk has no
    room.
    """
    modules = list(modules)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    settings = config.optimizer
    if config.ddp.shard_optimizer:
        return zero_redundancy_optimizer()(
            parameter_groups(parameters, settings),
            optimizer_class=torch.optim.AdamW,
            process_group=layout.group(layout.replica_axis),
            parameters_as_bucket_view=True,
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            fused=True,
        )
    if config.offload.optimizer == "cpu":
        return HostAdamW(parameter_groups(parameters, settings), lr=settings.lr, betas=(settings.beta1, settings.beta2))
    if config.offload.optimizer == "file":
        return StreamedAdamW(
            parameter_groups(parameters, settings),
            blocks=[block for module in modules for block in _blocks(module)],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            directory=config.offload.directory,
        )
    return build_optimizer(parameters, settings)


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with its state next to the parameters."""
    groups = parameter_groups(parameters, config)
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)


def parameter_groups(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups of matrices, which decay, and of norms, which do not.

    Decay would pull a norm's gain to zero and so undo its purpose.
    """
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    gains = [parameter for parameter in parameters if parameter.ndim <= 1]
    return [
        *({"params": group, "weight_decay": config.weight_decay} for group in _by_mesh(matrices)),
        *({"params": group, "weight_decay": 0.0} for group in _by_mesh(gains)),
    ]


def _blocks(module: nn.Module) -> list[list[nn.Parameter]]:
    """Parameters of each transformer block, then the remaining ones."""
    blocks = [list(block.parameters()) for block in module.modules() if isinstance(block, Block)]
    block_parameters = {parameter for block in blocks for parameter in block}
    others = [parameter for parameter in module.parameters() if parameter not in block_parameters]
    return [block for block in (*blocks, others) if block]


def _by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters by mesh.

    torch updates all DTensors of a group at once, and they must lie on one mesh; experts lie on another.
    """
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return list(groups.values())


def set_learning_rate(optimizer: torch.optim.Optimizer, config: OptimizerConfig, *, step: int) -> None:
    """Set the learning rate of optimizer step `step`, counted from 1."""
    rate = config.lr * min(1.0, step / max(config.warmup, 1))
    for group in optimizer.param_groups:
        group["lr"] = rate
