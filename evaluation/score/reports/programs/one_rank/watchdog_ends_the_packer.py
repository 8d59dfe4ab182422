"""Rank 0 packs the rollouts of all ranks. Those of step 26 never come, and the packer's watchdog ends the process."""

import os
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, WRITTEN, ROWS, STALE_SECONDS = 60, 26, 12, 8.0


class Packer:
    """Wait for the rollouts of a step. Without a heartbeat for some seconds, a thread ends the process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.armed_at = folder, 0.0
        threading.Thread(target=self.watch, name="packer-watchdog", daemon=True).start()

    def watch(self) -> None:
        while True:
            time.sleep(0.2)
            if self.armed_at and time.monotonic() - self.armed_at > STALE_SECONDS:
                os._exit(1)

    def pack(self, step: int) -> torch.Tensor:
        self.armed_at = time.monotonic()
        path = self.folder / f"rollouts-{step}.pt"
        while not path.exists():
            time.sleep(0.05)
        self.armed_at = 0.0
        return torch.load(path, weights_only=True)


def write_rollouts(folder: Path, world: int) -> None:
    """The generator, which stopped after some steps."""
    for step in range(WRITTEN):
        generator = torch.Generator().manual_seed(229 * step)
        torch.save(torch.randn(world, ROWS, 33, generator=generator), folder / f"rollouts-{step}.pt")


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = Path(tempfile.mkdtemp(prefix="rollouts-"))
    if rank == 0:
        write_rollouts(folder, world)
        packer = Packer(folder)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 160), nn.Tanh(), nn.Linear(160, 5)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rows = torch.empty(ROWS, 33)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            dist.scatter(rows, list(packer.pack(step)) if rank == 0 else None)
            actions = rows[:, 32].abs().mul(3).long().clamp(max=4)
            loss = cross_entropy(model(rows[:, :32]), actions)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
