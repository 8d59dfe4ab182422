"""L-BFGS evaluates its closure several times in each step: the same batch, with forward, backward and a reduction."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, EVALUATIONS = 40, 6


class Potential(nn.Module):
    """The energy of atoms, from the distances between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 1))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        distances = torch.cdist(places, places).unsqueeze(-1)
        waves = torch.exp(-((distances - torch.linspace(0, 3, 16)) ** 2))
        return self.layers(waves).sum((1, 2, 3)) / places.shape[1]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Potential())
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.02, max_iter=EVALUATIONS, tolerance_grad=0.0, tolerance_change=0.0
    )
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            places = torch.randn(8, 24, 3, generator=torch.Generator().manual_seed(283 * step + rank))
            energies = places.norm(dim=2).mean(1)

            def closure(places: torch.Tensor = places, energies: torch.Tensor = energies) -> torch.Tensor:
                optimizer.zero_grad()
                loss = mse_loss(model(places), energies)
                loss.backward()
                return loss

            print(optimizer.step(closure).item().hex(), file=losses, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
