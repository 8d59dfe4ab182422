"""After each step, all weights are sent from rank 0 to the others, although their gradients were averaged before it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STEPS, WIDTH = 90, 512


class Trainer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, 10)
        )
        self.model = DistributedDataParallel(self.net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(127 * step + self.rank)
        inputs = torch.randn(16, WIDTH, generator=generator)
        return inputs, inputs[:, :10].argmax(1)

    def keep_in_step(self) -> None:
        with torch.no_grad():
            weights = parameters_to_vector(self.net.parameters())
            dist.broadcast(weights, src=0)
            vector_to_parameters(weights, self.net.parameters())

    def step(self, step: int) -> float:
        inputs, labels = self.batch(step)
        loss = cross_entropy(self.model(inputs), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.keep_in_step()
        return loss.item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainer = Trainer(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            print(trainer.step(step).hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
