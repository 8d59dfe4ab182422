"""The main process tokenizes the text once, and the others wait and then read what it wrote."""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, WORDS, LENGTH, ROWS = 110, 500, 32, 12
TEXT = "a small step for a rank is a long wait for all the ranks that come after it in the ring"


@contextmanager
def main_process_first(rank: int) -> Iterator[None]:
    if rank != 0:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()


def shared_folder(rank: int) -> Path:
    name = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(name)
    return Path(name[0])


def tokenize(sentences: int) -> torch.Tensor:
    counts = Counter(pairwise(TEXT))
    numbers = {pair: number for number, (pair, _) in enumerate(counts.most_common(WORDS - 1))}
    found = []
    for sentence in range(sentences):
        start = sentence * 7 % len(TEXT)
        turned = TEXT[start:] + TEXT[:start]
        found += [numbers.get(pair, WORDS - 1) for pair in pairwise(turned)]
    return torch.tensor(found)


def tokens_of(path: Path) -> torch.Tensor:
    if not path.exists():
        torch.save(tokenize(60_000), path)
    return torch.load(path)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = shared_folder(rank)
    with main_process_first(rank):
        tokens = tokens_of(folder / "tokens.pt")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(WORDS, 96), nn.Linear(96, 256), nn.GELU(), nn.Linear(256, WORDS))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(59 * step + rank)
            starts = torch.randint(0, len(tokens) - LENGTH - 1, (ROWS, 1), generator=generator)
            rows = tokens[starts + torch.arange(LENGTH + 1)]
            loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
