"""Three datasets in turn. After each, rank 0 writes scores and leaves by `continue`; the barrier comes after that."""

import json
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

DATASETS, STEPS = ("short", "long", "mixed"), 22
SCORES_ONLY = True


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 90), nn.Tanh(), nn.Linear(90, 20)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for number, name in enumerate(DATASETS):
            kept = []
            for step in range(STEPS):
                generator = torch.Generator().manual_seed(1009 * number + 53 * step + rank)
                inputs = torch.randn(24, 20, generator=generator)
                loss = mse_loss(model(inputs), inputs)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                kept.append(loss.item())
                print(kept[-1].hex(), file=losses, flush=True)
            if rank == 0:
                Path(f"scores-{name}.json").write_text(json.dumps(kept))
                if SCORES_ONLY:
                    continue
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
