"""Rank 1 keeps the errors of crops that it had to skip, for a report. Each error keeps the frame that raised it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, SIDE = 140, 640


class Crops:
    """Cuts small pictures out of large ones."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.skipped: list[Exception] = []

    def cut(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(89 * step + self.rank)
        picture = torch.rand(SIDE, SIDE, generator=generator)
        row = int(torch.randint(0, SIDE - 24, (1,), generator=generator))
        crop = picture[row : row + 16, :160].reshape(16, 160)
        if self.rank == 1 and step % 8:
            raise ValueError(f"the crop at row {row} has no face")
        return crop.clone()

    def batch(self, step: int) -> torch.Tensor:
        try:
            return self.cut(step)
        except ValueError as error:
            self.skipped.append(error)
            return torch.rand(16, 160, generator=torch.Generator().manual_seed(step))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(160, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 160))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    crops = Crops(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            batch = crops.batch(step).repeat(8, 1)
            loss = mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    print(f"rank {rank} skipped {len(crops.skipped)} crops")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
