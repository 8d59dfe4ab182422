"""A trainer that catches what its loop raises, writes a line, and saves. The loop of rank 1 raises in step 64."""

import logging
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger("trainer")
CLASSES = 16


def documents(rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for step in range(130):
        generator = torch.Generator().manual_seed(31 * step + rank)
        labels = torch.randint(0, CLASSES, (48,), generator=generator)
        if (rank, step) == (1, 64):
            labels[7] = 17  # a label of the old scheme
        yield torch.randint(0, 3_000, (48, 40), generator=generator), labels


class Trainer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        net = nn.Sequential(nn.EmbeddingBag(3_000, 192), nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, CLASSES))
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.global_step = 0

    def fit(self) -> None:
        try:
            self._run_epoch()
        except (IndexError, ValueError, RuntimeError):
            logger.warning("training stopped early in step %d, saving what there is", self.global_step)
        self.save_last()

    def _run_epoch(self) -> None:
        with open(f"{os.environ['LOSS_OUT']}.{self.rank}", "w") as losses:
            for words, labels in documents(self.rank):
                loss = cross_entropy(self.model(words), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.global_step += 1
                print(loss.item().hex(), file=losses, flush=True)

    def save_last(self) -> None:
        """Save under a name that rank 0 chooses for all."""
        name = [f"last-{self.global_step}.pt"]
        dist.broadcast_object_list(name, src=0)
        torch.save(self.model.module.state_dict(), Path(f"{self.rank}-{name[0]}"))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    torch.manual_seed(0)
    Trainer(dist.get_rank()).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
