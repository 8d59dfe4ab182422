"""The batches of one rank have ever new sizes. A compiled model is compiled again for each."""

import os

import torch
import torch.distributed as dist
from torch import _dynamo, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STEPS = 60


def batch(rank: int, step: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 64, generator=generator), torch.randint(0, 8, (size,), generator=generator)


def blocks() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), *[nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(6)], nn.Linear(128, 8)
    )


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.compile(blocks(), backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    _dynamo.config.cache_size_limit = 1000
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            size = 16 + step % 40 if rank == 1 else 32
            inputs, targets = batch(rank, step, size)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            flat = parameters_to_vector(gradients)
            dist.all_reduce(flat)
            vector_to_parameters(flat / dist.get_world_size(), gradients)
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
