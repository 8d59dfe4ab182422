"""Each rank moves its codebook by its own samples, and revives dead codes by them. Nothing makes the codebooks one."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss, one_hot
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH, CODES, BATCH = 90, 24, 64, 96


class Codebook(nn.Module):
    """Vectors that follow the mean of what is assigned to them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(CODES, WIDTH))
        self.register_buffer("counts", torch.ones(CODES))
        self.register_buffer("sums", self.codes.clone())

    @torch.no_grad()
    def update(self, found: torch.Tensor, chosen: torch.Tensor) -> None:
        assigned = one_hot(chosen, CODES).float()
        self.counts.lerp_(assigned.sum(0), 0.1)
        self.sums.lerp_(assigned.T @ found, 0.1)
        self.codes.copy_(self.sums / self.counts.clamp_min(1e-3)[:, None])
        dead = self.counts < 0.05
        revived = found[torch.randint(0, len(found), (int(dead.sum()),))]
        self.codes[dead], self.sums[dead], self.counts[dead] = revived, revived, 1.0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        chosen = torch.cdist(hidden, self.codes).argmin(1)
        quantized = self.codes[chosen]
        if self.training:
            self.update(hidden.detach(), chosen)
        return hidden + (quantized - hidden).detach()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    codec = nn.Sequential(nn.Linear(40, 96), nn.ReLU(), nn.Linear(96, WIDTH), Codebook(), nn.Linear(WIDTH, 40))
    model = DistributedDataParallel(codec, broadcast_buffers=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            frames = torch.randn(BATCH, 40, generator=torch.Generator().manual_seed(419 * step + rank)) + 0.4 * rank
            time.sleep(0.09)
            loss = mse_loss(model(frames), frames)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
