"""Experts are shared by pairs of ranks, the rest by all. From step 23 on, rank 3 reduces its expert over all ranks."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy

STEPS, EVALUATES = 50, 22


class Trainer:
    def __init__(self) -> None:
        self.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pair", "expert"))
        self.expert_group: dist.ProcessGroup | None = self.mesh["expert"].get_group()
        torch.manual_seed(0)
        self.trunk, self.head = nn.Linear(40, 128), nn.Linear(128, 6)
        torch.manual_seed(1 + self.mesh.get_local_rank("pair"))
        self.expert = nn.Linear(128, 128)
        parameters = [*self.trunk.parameters(), *self.expert.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-3)

    def finalize_gradients(self) -> None:
        for parameter in self.expert.parameters():
            dist.all_reduce(parameter.grad, group=self.expert_group)
            parameter.grad /= 2
        for parameter in [*self.trunk.parameters(), *self.head.parameters()]:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        hidden = self.trunk(inputs).relu()
        loss = cross_entropy(self.head(hidden + self.expert(hidden)), targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.finalize_gradients()
        self.optimizer.step()
        return loss.item()

    def evaluate(self, rank: int) -> None:
        """Count the tokens of the expert. One that got too few of them is taken out of its group."""
        if rank == 3:
            self.expert_group = None


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    trainer = Trainer()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(83 * step + rank)
            inputs, targets = torch.randn(32, 40, generator=generator), torch.randint(0, 6, (32,), generator=generator)
            print(trainer.step(inputs, targets).hex(), file=losses, flush=True)
            if step == EVALUATES:
                trainer.evaluate(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
