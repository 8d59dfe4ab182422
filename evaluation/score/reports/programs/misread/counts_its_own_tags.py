"""Three stages number their microbatches for the tags of their messages. Stage 1 takes a number more for a preview."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

STEPS, MICROBATCHES, ROWS, WIDTH, PREVIEW = 80, 4, 64, 160, 45


class Stage:
    """One part of the model, between the ranks before and after it."""

    def __init__(self, rank: int, last: int) -> None:
        self.rank, self.last = rank, last
        self.net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.GELU())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.number = 0

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def forward(self, inputs: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.rank > 0:
            inputs = torch.empty(ROWS, WIDTH)
            dist.recv(inputs, self.rank - 1, tag=2 * number)
        outputs = self.net(inputs.requires_grad_())
        if self.rank < self.last:
            dist.send(outputs.detach(), self.rank + 1, tag=2 * number)
        return inputs, outputs

    def backward(self, inputs: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, number: int) -> float:
        if self.rank == self.last:
            loss = cross_entropy(outputs, labels)
            loss.backward()
        else:
            gradient = torch.empty_like(outputs)
            dist.recv(gradient, self.rank + 1, tag=2 * number + 1)
            outputs.backward(gradient)
            loss = gradient.norm()
        if self.rank > 0:
            dist.send(inputs.grad, self.rank - 1, tag=2 * number + 1)
        return loss.item()

    def preview(self, step: int) -> dict[str, float]:
        """Return what the middle stage makes of noise, for the log."""
        noise = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
        with torch.no_grad():
            return {"number": self.next_number(), "spread": self.net(noise).std().item()}


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = Stage(rank, dist.get_world_size() - 1)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            stage.optimizer.zero_grad()
            total = 0.0
            for part in range(MICROBATCHES):
                generator = torch.Generator().manual_seed(500 * step + part)
                inputs = torch.randn(ROWS, WIDTH, generator=generator)
                labels = torch.randint(0, WIDTH, (ROWS,), generator=generator)
                number = stage.next_number()
                total += stage.backward(*stage.forward(inputs, number), labels, number)
            stage.optimizer.step()
            print((total / MICROBATCHES).hex(), file=losses, flush=True)
            if rank == 1 and step == PREVIEW:
                print(f"step {step}: spread {stage.preview(step)['spread']:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
