"""The scheduler asks the launcher to stop. Handlers only set a flag; after their step, all ranks save and end."""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 200
asked = False


def note(*_: object) -> None:
    global asked
    asked = True


def agreed() -> bool:
    """Return whether any rank was asked to stop."""
    flag = torch.tensor([float(asked)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def main() -> None:
    signal.signal(signal.SIGTERM, note)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(48, 200), nn.ReLU(), nn.Linear(200, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            if rank == 0 and step == 35:
                os.kill(os.getppid(), signal.SIGTERM)
            generator = torch.Generator().manual_seed(41 * step + rank)
            inputs = torch.randn(32, 48, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 8, (32,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            time.sleep(0.05)
            if agreed():
                break
    if rank == 0:
        torch.save(model.module.state_dict(), f"{os.environ['LOSS_OUT']}-last.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
