"""FSDP2: each block's parameters, gradients and optimizer state are cut over the `fsdp` axis, or `fsdp` x `cp`.

With a `dp_replicate` axis the shards are replicated along it (HSDP).
"""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from traincope.engine.mesh import Layout
from traincope.engine.model import GPT


def shard(model: GPT, *, layout: Layout, bf16: bool, reshard_after_forward: bool) -> None:
    """Shard a model on the meta device in place: each block, then what is left; nothing without such an axis.

    `bf16` gathers parameters in bf16 and reduces gradients in fp32.
    """
    if layout.group(layout.shard_axis) is None:
        return
    mesh = layout.submesh("dp_replicate", layout.shard_axis)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = policy if bf16 else MixedPrecisionPolicy()
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
