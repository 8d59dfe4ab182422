"""Tensor parallelism of feed-forward blocks by `parallelize_module`. With four ranks, FSDP2 over the other axis."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS, BATCH, HIDDEN, BLOCKS = 12, 8, 32, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False), nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        return stream + self.down(self.up(stream).relu())


def split(model: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def main(directory: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, replica = nn.Sequential(*(Block() for _ in range(BLOCKS))), 0
    if size == 2:
        split(model, init_device_mesh("cpu", (2,)))
    else:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        split(model, mesh["tp"])
        replica = mesh.get_local_rank("dp")
        for block in model:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data, losses = torch.Generator().manual_seed(replica), []
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, HIDDEN, generator=data)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    Path(directory, f"losses-{rank}").write_text("\n".join(map(float.hex, losses)))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    time.sleep(0.5)  # a thread of gloo that lets go of its last work while Python ends aborts the process
    dist.destroy_process_group()
