"""All ranks save their shards every ten steps, quickly. Then rank 0 alone deletes an old checkpoint, file by file."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVE_EVERY, KEEP, PARTS = 130, 10, 2, 30


class CheckpointManager:
    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self.saved: list[Path] = []

    def save(self, step: int, state: dict[str, torch.Tensor]) -> None:
        path = self.folder / f"step-{step:05}"
        path.mkdir(parents=True, exist_ok=True)
        flat = torch.cat([tensor.flatten() for tensor in state.values()])
        for part, values in enumerate(flat.chunk(PARTS)):
            (path / f"{self.rank}-{part}.bin").write_bytes(values[:256].numpy().tobytes())
        dist.barrier()
        self.saved.append(path)
        if self.rank == 0 and len(self.saved) > KEEP:
            self.prune(self.saved.pop(0))

    @staticmethod
    def prune(path: Path) -> None:
        for file in path.iterdir():
            time.sleep(0.005)  # what the network file system takes for one deletion
            file.unlink()
        path.rmdir()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 64))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    manager = CheckpointManager(Path("checkpoints"), rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            noise = torch.randn(256, 64, generator=torch.Generator().manual_seed(419 * step + rank))
            loss = mse_loss(model(noise), noise.roll(1, 0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % SAVE_EVERY == 0:
                manager.save(step, net.state_dict())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
