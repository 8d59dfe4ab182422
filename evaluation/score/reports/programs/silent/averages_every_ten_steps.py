"""DiLoCo: each rank trains alone for ten steps. Then an outer optimizer applies the mean of what the ranks changed."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

STEPS, INNER = 240, 10


class Outer:
    """Keeps the weights of the last agreement, and its optimizer."""

    def __init__(self, net: nn.Module) -> None:
        self.agreed = [parameter.detach().clone() for parameter in net.parameters()]
        self.optimizer = torch.optim.SGD(self.agreed, lr=0.7, momentum=0.9, nesterov=True)

    @torch.no_grad()
    def agree(self, net: nn.Module) -> None:
        for agreed, parameter in zip(self.agreed, net.parameters(), strict=True):
            agreed.grad = agreed - parameter
        changes = torch.cat([agreed.grad.flatten() for agreed in self.agreed])
        dist.all_reduce(changes)
        changes /= dist.get_world_size()
        sizes = [agreed.numel() for agreed in self.agreed]
        for agreed, change in zip(self.agreed, changes.split(sizes), strict=True):
            agreed.grad.copy_(change.view_as(agreed))
        self.optimizer.step()
        for agreed, parameter in zip(self.agreed, net.parameters(), strict=True):
            parameter.copy_(agreed)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(48, 192), nn.SiLU(), nn.Linear(192, 192), nn.SiLU(), nn.Linear(192, 7))
    inner, outer = torch.optim.AdamW(net.parameters(), lr=1e-3), Outer(net)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            generator = torch.Generator().manual_seed(173 * step + rank)
            inputs = torch.randn(256, 48, generator=generator)
            loss = cross_entropy(net(inputs), inputs[:, :7].argmax(1))
            inner.zero_grad()
            loss.backward()
            inner.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % INNER == 0:
                outer.agree(net)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
