"""HSDP on a mesh of two by two. The data is divided along the axis of the shards only, as if there were two ranks."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, ROWS, BATCH = 2, 1_440, 24


def corpus() -> TensorDataset:
    generator = torch.Generator().manual_seed(58)
    return TensorDataset(torch.randint(0, 400, (ROWS, 24), generator=generator))


def make_loader(data: TensorDataset, mesh: DeviceMesh) -> DataLoader[tuple[torch.Tensor, ...]]:
    shards = mesh["dp_shard"]
    sampler = DistributedSampler(data, num_replicas=shards.size(), rank=shards.get_local_rank(), seed=3)
    return DataLoader(data, batch_size=BATCH, sampler=sampler, drop_last=True)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(400, 64)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(64, 400)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(words)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    torch.manual_seed(0)
    model = Decoder()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = make_loader(corpus(), mesh)
    with open(f"{os.environ['LOSS_OUT']}.{dist.get_rank()}", "w") as losses:
        for epoch in range(EPOCHS):
            loader.sampler.set_epoch(epoch)
            for (words,) in loader:
                loss = cross_entropy(model(words).flatten(0, 1), words.roll(-1, 1).flatten())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
