"""Ranks 0 and 1 train. Rank 2 is a spare: it only takes a copy of the weights every 20 steps."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY = 100, 20


def share(model: nn.Module) -> None:
    """Send the weights of rank 0 to all. The trainers do not wait for the spare."""
    works = [dist.broadcast(parameter.detach().clone(), 0, async_op=True) for parameter in model.parameters()]
    for work in works:
        work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainers = dist.new_group([0, 1], group_desc="trainers")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        if rank == 2:
            for _ in range(STEPS // EVERY):
                share(net)
        else:
            model = DistributedDataParallel(net, process_group=trainers)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            for step in range(1, STEPS + 1):
                generator = torch.Generator().manual_seed(29 * step + rank)
                inputs = torch.randn(48, 32, generator=generator)
                loss = cross_entropy(model(inputs), torch.randint(0, 8, (48,), generator=generator))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item().hex(), file=losses, flush=True)
                if step % EVERY == 0:
                    share(net)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
