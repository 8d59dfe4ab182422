"""Gradients are averaged without DDP. Each rank seeds its generator with its number before it makes the model."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy


class Patches(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(48, width)
        self.layers = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(patches)).mean(1))


def seed_everything(seed: int) -> None:
    """Make dropout and augmentation differ between ranks."""
    torch.manual_seed(seed + dist.get_rank())


def average_gradients(model: nn.Module) -> None:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--steps", type=int, default=130)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    seed_everything(options.seed)
    model = Patches(options.width, 15)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=options.steps)
    with open(f"{os.environ['LOSS_OUT']}.{dist.get_rank()}", "w") as losses:
        for step in range(options.steps):
            generator = torch.Generator().manual_seed(1009 * step + dist.get_rank())
            patches = torch.randn(16, 20, 48, generator=generator)
            loss = cross_entropy(model(patches), torch.randint(0, 15, (16,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model)
            optimizer.step()
            scheduler.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
