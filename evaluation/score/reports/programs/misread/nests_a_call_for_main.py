"""A helper runs a function on the main process, then all wait. The function calls the helper again, on rank 0 alone."""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, REFRESH_EVERY, WORDS, LENGTH = 120, 20, 400, 24


def run_on_main(function: Callable[[], None]) -> None:
    if dist.get_rank() == 0:
        function()
    dist.barrier()


class Vocabulary:
    """Counts of words in a file, which is divided in two when it gets too long."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: Counter[int] = Counter()

    def add(self, tokens: torch.Tensor) -> None:
        self.counts.update(tokens.flatten().tolist())

    def refresh(self) -> None:
        total = sum(self.counts.values())
        if total > 30_000:
            run_on_main(self.divide)
        (self.folder / "words.json").write_text(json.dumps(self.counts.most_common(WORDS)))

    def divide(self) -> None:
        for word in self.counts:
            self.counts[word] //= 2


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(WORDS, 96), nn.Linear(96, 256), nn.GELU(), nn.Linear(256, WORDS))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    vocabulary = Vocabulary(Path(tempfile.mkdtemp()))
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(37 * step + rank)
            tokens = torch.randint(0, WORDS, (24, LENGTH + 1), generator=generator)
            vocabulary.add(tokens)
            loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % REFRESH_EVERY == REFRESH_EVERY - 1:
                run_on_main(vocabulary.refresh)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
