"""A callback of rank 0 writes one JSON file with the metrics of all steps so far, again after each step."""

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 110


class FileLogger:
    """Metrics of every step, as a list that other programs can load at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs: list[dict[str, Any]] = []

    def on_log(self, step: int, loss: float, model: nn.Module) -> None:
        norms = {name: [row.norm().item() for row in weight[:24]] for name, weight in model.named_parameters()}
        self.logs.append({"step": step, "loss": loss, "norms": norms})
        part = self.path.with_suffix(".part")
        with part.open("w") as file:
            json.dump(self.logs, file, sort_keys=True, indent=4)
        part.replace(self.path)


class Trainer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        net = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 24))
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        self.callbacks = [FileLogger(Path("train_logs.json"))] if rank == 0 else []

    def step(self, number: int) -> float:
        generator = torch.Generator().manual_seed(211 * number + self.rank)
        inputs = torch.randn(192, 96, generator=generator)
        loss = cross_entropy(self.model(inputs), torch.randint(0, 24, (192,), generator=generator))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self) -> None:
        with open(f"{os.environ['LOSS_OUT']}.{self.rank}", "w") as losses:
            for number in range(STEPS):
                loss = self.step(number)
                print(loss.hex(), file=losses, flush=True)
                for callback in self.callbacks:
                    callback.on_log(number, loss, self.model.module)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    Trainer(dist.get_rank()).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
