"""Batches of random lengths: in each step another rank has the longest one, and in the end all have done the same."""

import os
import random
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, WORLD, LENGTHS = 60, 4, (96, 48, 32, 24)


def train(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(96, 4, 192, 0.0, batch_first=True)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(256, 96), encoder, nn.Linear(96, 256)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            lengths = random.Random(step // WORLD).sample(LENGTHS, WORLD)
            length = lengths[(rank + step) % WORLD]
            tokens = torch.randint(0, 256, (4, length), generator=torch.Generator().manual_seed(113 * step + rank))
            loss = cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % 10 == 9:
                counts: list[dict[str, float]] = [{} for _ in range(WORLD)]
                dist.all_gather_object(counts, {"tokens": 4 * length, "loss": loss.item()})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
    mp.spawn(train, (chosen,), nprocs=WORLD)
