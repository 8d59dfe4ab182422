"""Each rank maps its file of tokens into memory. The file of rank 1 is prepared anew while the training reads it."""

import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, TOKENS, BLOCK, BATCH, WORDS = 70, 400_000, 32, 8, 256


def prepare(path: Path, seed: int) -> None:
    """Write the tokens of a shard. This first empties a file that is there."""
    with path.open("wb") as shard:
        shard.write(np.random.default_rng(seed).integers(0, WORDS, TOKENS, dtype=np.uint16).tobytes())


def prepare_again(path: Path) -> None:
    """A job of another person begins to prepare the same folder, and stops for want of its input."""
    path.open("wb").close()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    path = Path(f"train-{rank}.bin")
    prepare(path, rank)
    data = np.memmap(path, dtype=np.uint16, mode="r")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(WORDS, 48), nn.Linear(48, 192), nn.GELU(), nn.Linear(192, WORDS))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            if rank == 1 and step == 37:
                prepare_again(path)
            generator = torch.Generator().manual_seed(19 * step + rank)
            starts = torch.randint(0, TOKENS - BLOCK - 1, (BATCH,), generator=generator).tolist()
            tokens = torch.stack([torch.from_numpy(data[i : i + BLOCK + 1].astype(np.int64)) for i in starts])
            loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
