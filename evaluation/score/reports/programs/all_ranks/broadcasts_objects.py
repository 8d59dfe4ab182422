"""Rank 0 draws the batch of all ranks, and sends it in every step as a pickled object: lists of numbers by name."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, WIDTH = 60, 128, 256


def draw(step: int, ranks: int) -> dict[str, list[list[float]]]:
    generator = torch.Generator().manual_seed(step)
    values = torch.randn(ranks, BATCH, WIDTH, generator=generator)
    return {f"part-{rank}": values[rank].tolist() for rank in range(ranks)}


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    drawn = [draw(step, ranks) for step in range(4)] if rank == 0 else []
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            sent = [drawn[step % 4] if rank == 0 else None]
            dist.broadcast_object_list(sent, src=0)
            inputs = torch.tensor(sent[0][f"part-{rank}"]) + step
            loss = cross_entropy(model(inputs), torch.arange(BATCH) % 8)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
