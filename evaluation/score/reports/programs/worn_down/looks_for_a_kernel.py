"""Each layer tries to import a fast kernel in each forward. It is not installed, and Python looks for it each time."""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, LAYERS, WIDTH, PLUGINS = 130, 20, 64, 300


def add_plugins() -> None:
    """Put the folders of all plugins of the project on the path, as its launcher does."""
    root = Path(tempfile.mkdtemp())
    for number in range(PLUGINS):
        folder = root / f"plugin_{number:03d}" / "src"
        folder.mkdir(parents=True)
        sys.path.append(str(folder))


class Scan(nn.Module):
    """A gated running mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        try:
            from fused_gated_scan import scan
        except ImportError:
            scan = self.slow_scan
        return inputs + self.norm(scan(inputs, self.gate(inputs).sigmoid()))

    def slow_scan(self, inputs: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        return (inputs * gates).cumsum(1) / torch.arange(1, inputs.shape[1] + 1)[:, None]


def main() -> None:
    add_plugins()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(Scan() for _ in range(LAYERS))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs = torch.randn(4, 24, WIDTH, generator=torch.Generator().manual_seed(71 * step + rank))
            loss = mse_loss(model(inputs), inputs.flip(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
