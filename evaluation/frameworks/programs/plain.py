"""Two matrices trained without a module and without a DataLoader. The script averages the gradients itself."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, BATCH, INPUTS, HIDDEN, OUTPUTS = 24, 8, 32, 64, 16


def train(directory: str, *, by_hand: bool) -> None:
    """`by_hand`: update the weights in place, without an optimizer."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    first, second = torch.randn(INPUTS, HIDDEN), torch.randn(HIDDEN, OUTPUTS)
    weights = [first.requires_grad_(), second.requires_grad_()]
    optimizer = None if by_hand else torch.optim.SGD(weights, lr=1e-4)
    data, losses = torch.Generator().manual_seed(rank), []
    for _ in range(STEPS):
        inputs, targets = (torch.randn(BATCH, width, generator=data) for width in (INPUTS, OUTPUTS))
        loss = ((inputs @ first).relu() @ second - targets).square().mean()
        loss.backward()
        for weight in weights:
            dist.all_reduce(weight.grad)
            weight.grad /= size
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        else:
            with torch.no_grad():
                for weight in weights:
                    weight -= 1e-4 * weight.grad
                    weight.grad = None
        losses.append(loss.item())
    Path(directory, f"losses-{rank}").write_text("\n".join(map(float.hex, losses)))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1], by_hand="--by-hand" in sys.argv)
    dist.destroy_process_group()
