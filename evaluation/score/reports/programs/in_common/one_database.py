"""All ranks keep their results in one SQLite file. One transaction of a step is open while the file is written."""

import argparse
import os
import sqlite3
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


class Results:
    """A table of results, which several processes may write. The file lies on a slow network disk."""

    def __init__(self, path: str) -> None:
        self.database = sqlite3.connect(path, timeout=60, isolation_level=None)
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS results (rank INTEGER, step INTEGER, item INTEGER, loss REAL)"
        )

    def record(self, rank: int, step: int, values: list[float]) -> None:
        self.database.execute("BEGIN IMMEDIATE")
        rows = [(rank, step, at, value) for at, value in enumerate(values)]
        self.database.executemany("INSERT INTO results VALUES (?, ?, ?, ?)", rows)
        time.sleep(0.04)  # what the disk takes to sync the pages
        self.database.execute("COMMIT")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=55)
    parser.add_argument("--results", default="results.db")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(48, 192), nn.ReLU(), nn.Linear(192, 12)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if rank == 0:
        Results(options.results)
    dist.barrier()
    results = Results(options.results)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(options.steps):
            generator = torch.Generator().manual_seed(61 * step + rank)
            inputs = torch.randn(64, 48, generator=generator)
            each = cross_entropy(model(inputs), torch.randint(0, 12, (64,), generator=generator), reduction="none")
            loss = each.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            results.record(rank, step, each.tolist())
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
