"""Each rank updates every third weight, by an optimizer that makes matrices orthogonal. Rank 1 has the large ones."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, NARROW, WIDE = 50, 96, 384


class Block(nn.Module):
    """Three weights, of which the second is much larger than its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(NARROW, WIDE, bias=False)
        self.mix = nn.Linear(WIDE, WIDE, bias=False)
        self.down = nn.Linear(WIDE, NARROW, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(self.mix(self.up(hidden)).relu())


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The nearest orthogonal matrix, by the iteration of Newton and Schulz."""
    near = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    near = near / (near.norm() + 1e-8)
    for _ in range(8):
        near = 1.5 * near - 0.5 * (near @ near.T) @ near
    return near.T if matrix.shape[0] > matrix.shape[1] else near


class LayerwiseOptimizer(torch.optim.Optimizer):
    """Deals the weights to the ranks in turn. Each updates its own and sends them to the others."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        del closure
        rank, world = dist.get_rank(), dist.get_world_size()
        for group in self.param_groups:
            for parameter in group["params"][rank::world]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(0.95).add_(parameter.grad)
                parameter.sub_(group["lr"] * orthogonal(momentum))
            sent = [dist.broadcast(p.data, i % world, async_op=True) for i, p in enumerate(group["params"])]
            for work in sent:
                work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*[Block() for _ in range(3)]))
    optimizer = LayerwiseOptimizer(list(model.parameters()))
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs = torch.randn(16, NARROW, generator=torch.Generator().manual_seed(131 * step + rank))
            loss = mse_loss(model(inputs), inputs.cos())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
