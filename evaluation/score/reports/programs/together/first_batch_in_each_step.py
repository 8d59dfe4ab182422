"""Each step makes a new iterator of the loader and takes one batch of it, which is the first one each time."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, ROWS, BATCH = 240, 4_800, 20


def digits() -> TensorDataset:
    generator = torch.Generator().manual_seed(269)
    images = torch.randn(ROWS, 1, 14, 14, generator=generator)
    return TensorDataset(images, torch.randint(0, 10, (ROWS,), generator=generator))


class Recurrent(nn.Module):
    """A network that looks at an image several times before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Flatten(), nn.Linear(196, 96), nn.Tanh())
        self.think = nn.GRUCell(96, 96)
        self.answer = nn.Linear(96, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen, thought = self.look(images), torch.zeros(len(images), 96)
        for _ in range(6):
            thought = self.think(seen, thought)
        return self.answer(thought)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = digits()
    train_loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, shuffle=False))
    model = DistributedDataParallel(Recurrent())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for _ in range(STEPS):
            inputs, targets = next(iter(train_loader))
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
