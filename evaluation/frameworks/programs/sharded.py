"""FSDP over a stack of blocks, by the wrapper of torch 1 (`fsdp1`) or by `fully_shard` (`fsdp2`)."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH, HIDDEN, BLOCKS, OUTPUTS = 12, 8, 32, 2, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        return stream + self.down(self.up(stream).relu())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(HIDDEN, OUTPUTS)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            stream = block(stream)
        return self.head(stream)


def shard(model: nn.Module, how: str) -> nn.Module:
    if how == "fsdp1":
        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu")
        )
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def main(directory: str, how: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(2 * STEPS * BATCH, HIDDEN), torch.randn(2 * STEPS * BATCH, OUTPUTS))
    batches = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
    model = shard(Model(), how)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for number, (inputs, targets) in enumerate(batches):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        if how == "fsdp1":
            model.clip_grad_norm_(1.0)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if number == 0 and how == "fsdp2":
            dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=f"{directory}/first")
    Path(directory, f"losses-{rank}").write_text("\n".join(map(float.hex, losses)))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(*sys.argv[1:])
    dist.destroy_process_group()
