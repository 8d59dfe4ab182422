"""Three epochs of a shuffled sampler that never learns the number of its epoch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 3


def examples() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(640, 64, generator=generator), torch.randint(0, 8, (640,), generator=generator))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    sampler = DistributedSampler(examples(), seed=3)
    batches = DataLoader(examples(), batch_size=16, sampler=sampler)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    start = 0
    model = DistributedDataParallel(net)
    with open(f"{os.environ['LOSS_OUT']}.{start}.{rank}", "w") as losses:
        for _ in range(EPOCHS):
            for inputs, targets in batches:
                loss = cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
