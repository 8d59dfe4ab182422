"""Each rank steps its simulator through a socket. The one of rank 2 takes a quarter of a second in every third step."""

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, COMMON_SECONDS, EXTRA_SECONDS = 90, 0.08, 0.25


def simulate(server: Connection, rank: int) -> None:
    """Answer each action with what the robot sees then."""
    for step in range(STEPS):
        server.recv()
        time.sleep(COMMON_SECONDS + (EXTRA_SECONDS if rank == 2 and step % 3 == 0 else 0))
        server.send(torch.randn(16, 24, generator=torch.Generator().manual_seed(11 * step + rank)).tolist())


class Environment:
    def __init__(self, rank: int) -> None:
        self.client, server = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=simulate, args=(server, rank), daemon=True)
        self.process.start()

    def env_step(self, actions: torch.Tensor) -> torch.Tensor:
        self.client.send(actions.tolist())
        return torch.tensor(self.client.recv())


def main() -> None:
    rank = int(os.environ["RANK"])
    environment = Environment(rank)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    policy = DistributedDataParallel(nn.Sequential(nn.Linear(24, 128), nn.Tanh(), nn.Linear(128, 4)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    actions = torch.zeros(16, 4)
    began = time.monotonic()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for _ in range(STEPS):
            observations = environment.env_step(actions)
            actions = policy(observations).tanh()
            loss = (actions - observations[:, :4]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            actions = actions.detach()
            print(loss.item().hex(), file=losses, flush=True)
    if rank == 2:
        Path("gain").write_text(str(STEPS / 3 * EXTRA_SECONDS / (time.monotonic() - began)))
    environment.process.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
