"""A mesh of two replicas with two shards each. The model is given the axis of shards only: replicas train alone."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

STEPS, WIDTH, EXPERTS = 75, 80, 3


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 160), nn.SiLU(), nn.Linear(160, WIDTH)) for _ in range(EXPERTS)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weights = self.router(hidden).softmax(-1)
        outputs = torch.stack([expert(hidden) for expert in self.experts], -1)
        return hidden + (outputs * weights.unsqueeze(-2)).sum(-1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(350, WIDTH)
        self.layers = nn.ModuleList(Mixture() for _ in range(3))
        self.head = nn.Linear(WIDTH, 350)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(words)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def parallelize(model: Model) -> Model:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["shard"])
    return fully_shard(model, mesh=mesh["shard"])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = parallelize(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            words = torch.randint(0, 350, (12, 24), generator=torch.Generator().manual_seed(331 * step + rank))
            loss = cross_entropy(model(words).flatten(0, 1), words.roll(-1, 1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
