"""Adapters are put into the model after DDP has wrapped it, so only the head's gradients are reduced."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


class Adapted(nn.Module):
    """A frozen layer and a trained product of two small matrices."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / 8)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs) + inputs @ self.down.T @ self.up.T


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])
        self.head = nn.Linear(64, 6)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.body:
            inputs = torch.relu(layer(inputs))
        return self.head(inputs)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    net.body.requires_grad_(False)
    model = DistributedDataParallel(net)
    for index, layer in enumerate(net.body):
        net.body[index] = Adapted(layer)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(37 * step + rank)
            inputs = torch.randn(32, 64, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 6, (32,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
