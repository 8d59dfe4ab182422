"""Only rank 2 gets the scheduler's signal. Its flag is reduced, so that all ranks save and end in the same step.

Each rank is a process of its own, as a script on each node starts them: `RANK` and its like are in the environment.
"""

import os
import signal
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

STEPS, WORLD = 120, 4


class Preemption:
    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGTERM, self.handle)

    def handle(self, *_: object) -> None:
        self.requested = True

    def any_rank(self) -> bool:
        flags = [torch.zeros(1) for _ in range(WORLD)]
        dist.all_gather(flags, torch.tensor([float(self.requested)]))
        return any(flag.item() for flag in flags)


def train() -> None:
    preemption = Preemption()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(28, 112), nn.GELU(), nn.Linear(112, 112), nn.GELU(), nn.Linear(112, 5))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            if rank == 2 and step == 44:
                os.kill(os.getpid(), signal.SIGTERM)
            generator = torch.Generator().manual_seed(13 * step + rank)
            inputs = torch.randn(24, 28, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 5, (24,), generator=generator))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item().hex(), file=losses, flush=True)
            time.sleep(0.03)
            if preemption.any_rank():
                torch.save(model.state_dict(), f"{os.environ['LOSS_OUT']}-last.{rank}.pt")
                break
    dist.destroy_process_group()


def start() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD)}
    ranks = [
        subprocess.Popen([sys.executable, __file__], env=os.environ | where | {"RANK": str(rank)})
        for rank in range(WORLD)
    ]
    codes = [process.wait() for process in ranks]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(start()) if "RANK" not in os.environ else train()
