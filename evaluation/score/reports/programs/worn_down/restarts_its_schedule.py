"""The learning rate follows a cosine and starts anew every 40 steps, so that the loss jumps up and falls again."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

STEPS, PERIOD, ROWS, CLASSES = 200, 40, 192, 10


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(163 * step + rank)
    inputs = torch.randn(ROWS, 128, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(1)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8, momentum=0.9)
    schedule = CosineAnnealingWarmRestarts(optimizer, T_0=PERIOD, eta_min=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, labels = batch(rank, step)
            loss = cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            schedule.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
