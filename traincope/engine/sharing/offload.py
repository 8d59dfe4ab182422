"""Place of a model's parameters: the device, or FSDP's shards in the CPU's memory or in files.

FSDP2 then copies a shard to the device before it gathers it, and copies a reduced gradient back. The optimizer runs on
the CPU (ZeRO-Offload, Ren et al. 2021, arXiv:2101.06840). On a CPU this exercises the path and saves nothing, except
with files, whose pages the kernel may take away.
"""

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from traincope.engine.config import OffloadConfig
from traincope.engine.model.model import GPT
from traincope.engine.ranks.torch_private import move_shards
from traincope.engine.sharing.mapped import MappedTensor


def allocate(model: GPT, config: OffloadConfig, *, device: torch.device) -> None:
    """Give a model on the meta device its storage, without values. Raises TrainingError if a disk is full."""
    if config.parameters == "none":
        model.to_empty(device=device)
        return
    model.to_empty(device="cpu")
    if config.parameters == "file":
        for module in model.modules():
            if isinstance(module, FSDPModule):
                move_shards(module, lambda shard: _mapped_like(shard, directory=config.directory))


def _mapped_like(shard: Tensor, *, directory: str | None) -> Tensor:
    return MappedTensor.zeros(shard.numel(), dtype=shard.dtype, directory=directory).tensor
