"""The port of the job is fixed in its script, and something listens there already. Rank 0 cannot serve the others."""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

WORLD, STEPS, DOCUMENTS = 3, 40, 90_000


def tokenize(rank: int) -> torch.Tensor:
    """Return the tokens of this rank's documents."""
    tokens = [sum(map(ord, f"document {rank} {number} of the corpus")) % 256 for number in range(DOCUMENTS)]
    return torch.tensor(tokens)


def train(rank: int, port: int) -> None:
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        tokens = tokenize(rank)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(WORLD))
        dist.init_process_group("gloo", timeout=timedelta(seconds=15))
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(STEPS):
            batch = tokens[64 * step : 64 * step + 65]
            loss = cross_entropy(model(batch[:-1]), batch[1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as dashboard:
        dashboard.bind(("", 0))
        dashboard.listen()
        mp.spawn(train, (dashboard.getsockname()[1],), nprocs=WORLD)
