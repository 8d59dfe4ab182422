"""In every second step, rank 0 plans anew which rank keeps which table, and broadcasts its plan to the others."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, TABLES, TRIES = 160, 2, 48, 20_000


def find_plan(costs: list[float], world: int, seed: int) -> list[int]:
    """Return the rank of each table. Random exchanges are kept if they make the fullest rank emptier."""
    chance = random.Random(seed)
    plan = [table % world for table in range(len(costs))]

    def fullest() -> float:
        sums = [0.0] * world
        for table, owner in enumerate(plan):
            sums[owner] += costs[table]
        return max(sums)

    best = fullest()
    for _ in range(TRIES):
        one, other = chance.randrange(len(plan)), chance.randrange(len(plan))
        plan[one], plan[other] = plan[other], plan[one]
        if (cost := fullest()) > best:
            plan[one], plan[other] = plan[other], plan[one]
        else:
            best = cost
    return plan


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.EmbeddingBag(TABLES * 20, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    plan = torch.zeros(TABLES, dtype=torch.long)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(241 * step + rank)
            if step % EVERY == 0:
                if rank == 0:
                    costs = torch.rand(TABLES, generator=generator).tolist()
                    plan = torch.tensor(find_plan(costs, world, step))
                dist.broadcast(plan, 0)
            ids = torch.randint(0, TABLES * 20, (128, 12), generator=generator)
            loss = cross_entropy(model(ids), ids.sum(1) % 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), int((plan == rank).sum()), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
