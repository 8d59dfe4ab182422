"""A thread of each rank reads counters of its process for a dashboard. It yields between readings, and never waits."""

import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 260


class Telemetry(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="telemetry", daemon=True)
        self.stopped = False
        self.peak_bytes = 0

    def run(self) -> None:
        while not self.stopped:
            time.sleep(0)
            self.read_counters()

    def read_counters(self) -> None:
        fields = [field for line in Path("/proc/self/status").read_text().splitlines() for field in line.split()]
        counters = {fields[at].rstrip(":"): fields[at + 1] for at in range(len(fields) - 1) if fields[at][-1] == ":"}
        self.peak_bytes = max(self.peak_bytes, 1024 * int(counters["VmRSS"]))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(900, 64)
        self.cells = nn.ModuleList(nn.GRUCell(64, 64) for _ in range(2))
        self.out = nn.Linear(64, 30)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        embedded, outputs = self.words(words), []
        states = [torch.zeros(len(words), 64) for _ in self.cells]
        for at in range(words.shape[1]):
            hidden = embedded[:, at]
            for layer, cell in enumerate(self.cells):
                hidden = states[layer] = cell(hidden, states[layer])
            outputs.append(self.out(hidden))
        return torch.stack(outputs, 1)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    telemetry = Telemetry()
    telemetry.start()
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            words = torch.randint(0, 900, (16, 16), generator=torch.Generator().manual_seed(71 * step + rank))
            loss = cross_entropy(model(words).flatten(0, 1), words.flatten() % 30)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    telemetry.stopped = True
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
