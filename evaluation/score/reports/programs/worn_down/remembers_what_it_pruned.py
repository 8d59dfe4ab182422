"""A cloud of points is pruned and split every second step, into a new parameter. Adam keeps the state of the old."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

STEPS, POINTS, FIELDS, CHANGE_EVERY = 160, 12_000, 14, 2


class Cloud:
    """Points with a position, a size and a colour each."""

    def __init__(self) -> None:
        self.points = nn.Parameter(torch.randn(POINTS, FIELDS))
        self.mix = nn.Linear(FIELDS, 48)
        self.optimizer = torch.optim.Adam([{"params": [self.points]}, {"params": self.mix.parameters()}], lr=1e-3)

    def render(self, view: torch.Tensor) -> torch.Tensor:
        return self.mix(self.points * view).tanh().view(100, -1, 48).mean(1)

    def change(self) -> None:
        """Replace the faintest tenth of the points by copies of the clearest, with what Adam knows of them."""
        clear = self.points.detach()[:, -1].argsort(descending=True)
        kept = torch.cat([clear[: POINTS - POINTS // 10], clear[: POINTS // 10]])
        known = self.optimizer.state[self.points]
        points = nn.Parameter(self.points.detach()[kept].clone())
        self.optimizer.state[points] = {
            "step": known["step"].clone(),
            "exp_avg": known["exp_avg"][kept].clone(),
            "exp_avg_sq": known["exp_avg_sq"][kept].clone(),
        }
        self.optimizer.param_groups[0]["params"] = [points]
        self.points = points

    def parameters(self) -> list[nn.Parameter]:
        return [self.points, *self.mix.parameters()]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    cloud = Cloud()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(139 * step + rank)
            view, goal = torch.randn(FIELDS, generator=generator), torch.rand(100, 48, generator=generator)
            loss = mse_loss(cloud.render(view), goal)
            cloud.optimizer.zero_grad()
            loss.backward()
            for parameter in cloud.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
            cloud.optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % CHANGE_EVERY == CHANGE_EVERY - 1:
                cloud.change()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
