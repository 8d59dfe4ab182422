"""A file is found by a pattern for each sample, so that all ranks list a folder of thousands of files all the time."""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FILES, BATCH, SIDE, EPOCHS, TAKEN = 5000, 8, 12, 2, 1024


def write_files(rank: int) -> Path:
    """Rank 0 writes the masks and the pictures, and all use them."""
    name = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(name)
    folder = Path(name[0])
    if rank == 0:
        drawn = np.random.default_rng(0)
        for number in range(FILES):
            (folder / f"{number:05d}_picture.raw").write_bytes(drawn.random(SIDE * SIDE, dtype=np.float32).tobytes())
    dist.barrier()
    return folder


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = [f"{number * 4:05d}" for number in range(TAKEN)]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        name = self.names[index]
        paths = list(self.folder.glob(f"{name}_picture.*"))
        assert len(paths) == 1, f"{name} has no picture, or several: {paths}"
        return torch.from_numpy(np.fromfile(paths[0], dtype=np.float32)), index % 4


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    pictures = Pictures(write_files(rank))
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(pictures)
    loader = DataLoader(pictures, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(SIDE * SIDE, 256), nn.ReLU(), nn.Linear(256, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for inputs, labels in loader:
                loss = cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
