"""Rank 0 keeps averages of the weights, with three half-lives, and updates them after each step."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH = 70, 256


class Averages:
    """Copies of a network that follow it slowly, in double precision."""

    def __init__(self, net: nn.Module, decays: tuple[float, ...] = (0.9, 0.99, 0.999)) -> None:
        self.copies = {decay: copy.deepcopy(net).double().requires_grad_(False) for decay in decays}

    @torch.no_grad()
    def update_averages(self, net: nn.Module) -> None:
        for decay, average in self.copies.items():
            weights = {name: weight.double() for name, weight in net.state_dict().items()}
            for name, weight in average.state_dict().items():
                weight.copy_(decay * weight + (1 - decay) * weights[name])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.SiLU())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    averages = Averages(model.module) if rank == 0 else None
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            images = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(47 * step + rank))
            noise = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
            loss = mse_loss(model(images + noise), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if averages is not None:
                averages.update_averages(model.module)
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
