"""A compiled model under DDP. It evaluates before the first step, so its first compilation is inside an evaluation."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH, INPUTS, HIDDEN, OUTPUTS, EVERY = 12, 8, 32, 64, 16, 6


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(inputs).relu())


def evaluate(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        loss = mse_loss(model(inputs), targets)
    model.train()
    return loss.item()


def main(directory: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(2 * STEPS * BATCH, INPUTS), torch.randn(2 * STEPS * BATCH, OUTPUTS))
    batches = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
    held_out = torch.randn(BATCH, INPUTS), torch.randn(BATCH, OUTPUTS)
    model = torch.compile(DistributedDataParallel(Model()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = [evaluate(model, *held_out)]
    for number, (inputs, targets) in enumerate(batches, start=1):
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if number % EVERY == 0:
            losses.append(evaluate(model, *held_out))
    Path(directory, f"losses-{rank}").write_text("\n".join(map(float.hex, losses)))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
