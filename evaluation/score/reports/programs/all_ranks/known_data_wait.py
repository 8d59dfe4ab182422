"""The loader decodes in the training process, 60 ms per batch. Each rank writes the share of it."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STEPS, BATCH, DECODE_SECONDS, RENDER_SECONDS = 60, 6, 0.01, 0.12


class Pictures(Dataset):
    def __len__(self) -> int:
        return 2 * STEPS * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(DECODE_SECONDS)
        return torch.randn(30, generator=torch.Generator().manual_seed(index))


class Render(nn.Module):
    """A layer that takes a fixed time, as a kernel that nothing of this host can make faster."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(RENDER_SECONDS)
        return inputs


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Pictures()
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(30, 90), Render(), nn.Tanh(), nn.Linear(90, 30)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    began = time.monotonic()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for inputs in loader:
            loss = mse_loss(model(inputs), inputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    if rank == 0:
        Path("gain").write_text(str(STEPS * BATCH * DECODE_SECONDS / (time.monotonic() - began)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
