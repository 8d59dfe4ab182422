"""A pipeline of three stages, written by hand. Each stage derives the number of microbatches from its own settings."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

STEPS, ROWS, WIDTH = 30, 16, 64


def microbatches(stage: int, step: int) -> int:
    """The middle stage has a newer schedule of batch sizes, which shrinks the batch after step 18."""
    rows = 48 if stage == 1 and step >= 18 else 64
    return rows // ROWS


def forward(stage: int, last: int, module: nn.Module, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if stage:
        dist.recv(given, stage - 1)
        given.requires_grad_()
    result = module(given)
    if stage < last:
        dist.send(result.detach(), stage + 1)
    return given, result


def backward(stage: int, last: int, given: torch.Tensor, result: torch.Tensor, target: torch.Tensor) -> float:
    if stage == last:
        loss = mse_loss(result, target)
        loss.backward()
    else:
        gradient = torch.empty_like(result)
        dist.recv(gradient, stage + 1)
        result.backward(gradient)
    if stage:
        dist.send(given.grad, stage - 1)
    return loss.item() if stage == last else 0.0


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    stage, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(stage)
    module = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    with open(f"{os.environ['LOSS_OUT']}.{stage}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(step)
            data = torch.randn(4, ROWS, WIDTH, generator=generator)
            passed = [
                forward(stage, last, module, data[index] if stage == 0 else torch.empty(ROWS, WIDTH))
                for index in range(microbatches(stage, step))
            ]
            total = sum(
                backward(stage, last, given, result, data[index]) for index, (given, result) in enumerate(passed)
            )
            norm = torch.stack([parameter.grad.norm() ** 2 for parameter in module.parameters()]).sum()
            dist.all_reduce(norm)
            optimizer.step()
            optimizer.zero_grad()
            print(total.hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
