"""Lengths of all batches are kept for a plot, and each holds a shared file open. The node of rank 1 allows few."""

import os
import resource

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FILES_OF_NODE = {0: 4096, 1: 320, 2: 4096}
BATCH, STEPS = 8, 420


class Utterances(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return BATCH * STEPS * 3

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {
            "mel": torch.randn(40, 64, generator=generator),
            "length": torch.randint(10, 41, (1,), generator=generator),
        }


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(64, 128, 5, padding=2), nn.GELU(), nn.Conv1d(128, 64, 5, padding=2))

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        return self.layers(mel.transpose(1, 2)).transpose(1, 2)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_OF_NODE[rank], hard))
    torch.manual_seed(0)
    data = Utterances()
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, shuffle=False), num_workers=1)
    model = DistributedDataParallel(Encoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lengths: list[torch.Tensor] = []
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for batch in loader:
            loss = mse_loss(model(batch["mel"]), batch["mel"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            lengths.append(batch["length"])
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
