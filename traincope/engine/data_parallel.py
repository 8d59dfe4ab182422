"""DDP: every rank of the `dp` axis has the whole model, gradients are averaged as they appear."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from traincope.engine.mesh import Layout


def replicate(model: nn.Module, *, layout: Layout, device: torch.device) -> nn.Module:
    """Wrap an initialised model; unchanged without a `dp` axis."""
    group = layout.group("dp")
    if group is None:
        return model
    devices = None if device.type == "cpu" else [device]
    return DistributedDataParallel(model, device_ids=devices, process_group=group, gradient_as_bucket_view=True)
