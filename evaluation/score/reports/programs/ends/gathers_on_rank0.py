"""FSDP2. After step 24, rank 0 alone asks for whole weights; the others go on with the next forward."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

STEPS, EXPORT = 40, 24


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.mix(self.norm(inputs))


def export(model: nn.Module) -> dict[str, torch.Tensor]:
    """Weights for the sampling server. `full_tensor` is a collective, which the caller does not see."""
    return {name: parameter.full_tensor() for name, parameter in model.named_parameters()}


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    model = nn.Sequential(nn.Linear(48, 96), Layer(96), Layer(96), nn.Linear(96, 12))
    for layer in model[1:3]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(97 * step + rank)
            inputs = torch.randn(64, 48, generator=generator)
            targets = torch.randint(0, 12, (64,), generator=generator)
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item().hex(), file=losses, flush=True)
            if step == EXPORT and rank == 0:
                torch.save(export(model), f"{os.environ['LOSS_OUT']}-weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
