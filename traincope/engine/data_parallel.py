"""DDP: every rank of the `dp` axis has the whole model, gradients are averaged as they appear."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from traincope.engine.compression import compress_gradients
from traincope.engine.config import DDPConfig
from traincope.engine.mesh import Layout


def apply_ddp(model: nn.Module, settings: DDPConfig, *, layout: Layout, device: torch.device) -> nn.Module:
    """Wrap an initialised model; unchanged without a `dp` axis, and where FSDP has its parameters."""
    group = layout.group("dp")
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
