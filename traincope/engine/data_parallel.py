"""DDP: every rank of the `dp` axis, or of `dp` x `cp`, has the whole model, gradients are averaged as they appear."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from traincope.engine.compression import compress_gradients
from traincope.engine.config import DDPConfig
from traincope.engine.mesh import Layout


def apply_ddp(model: nn.Module, settings: DDPConfig, *, layout: Layout, device: torch.device) -> nn.Module:
    """Wrap an initialised model; unchanged without such an axis, and where FSDP has its parameters."""
    group = layout.group(layout.replica_axis)
    if group is None or layout.sharded:
        return model
    replicas = DistributedDataParallel(
        model,
        device_ids=None if device.type == "cpu" else [device],
        process_group=group,
        bucket_cap_mb=settings.bucket_mib,
        gradient_as_bucket_view=True,
    )
    compress_gradients(replicas, settings, group=group)
    return replicas
