"""FSDP2 with a distributed checkpoint every 15 steps. The disk of rank 1 is full when it writes the second one."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

STEPS, EVERY = 50, 15


def save(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    """Write the shards. Each rank has a disk of its own below the folder of the checkpoint."""
    folder = Path(f"checkpoint-{step}")
    folder.mkdir(exist_ok=True)
    if rank == 1 and step > EVERY:
        (folder / "__1_0.distcp").symlink_to("/dev/full")
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 192), nn.SiLU(), nn.Linear(192, 192), nn.SiLU(), nn.Linear(192, 48))
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            inputs = torch.randn(32, 48, generator=torch.Generator().manual_seed(53 * step + rank))
            loss = mse_loss(model(inputs), inputs.cumsum(1).tanh())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % EVERY == 0:
                save(model, optimizer, rank, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
