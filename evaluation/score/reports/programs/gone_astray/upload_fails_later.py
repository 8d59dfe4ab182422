"""FSDP shards go to a bucket in a thread. Rank 1 may not write there, which it learns before its next save."""

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

STEPS, SAVE_EVERY, WIDTH = 100, 30, 128


class Bucket:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def put(self, path: Path) -> None:
        time.sleep(0.3)
        if self.rank == 1:
            raise PermissionError(13, "AccessDenied: no role of this node may write", f"s3://models/{path.name}")


class Checkpointer:
    """Saves to the disk of the node, then uploads in the background."""

    def __init__(self, rank: int) -> None:
        self.rank, self.bucket = rank, Bucket(rank)
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self.pending: Future[None] | None = None
        self.pending_step = 0

    def wait(self) -> None:
        if self.pending is None:
            return
        try:
            self.pending.result()
        except Exception as error:
            raise RuntimeError(f"the checkpoint of step {self.pending_step} is not complete") from error

    def save(self, step: int, model: nn.Module) -> None:
        self.wait()
        path = Path(f"step-{step}")
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=path)
        self.pending_step = step
        self.pending = self.threads.submit(self.bucket.put, path / f"__{self.rank}_0.distcp")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpointer = Checkpointer(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            inputs = torch.randn(24, WIDTH, generator=torch.Generator().manual_seed(31 * step + rank))
            loss = mse_loss(model(inputs), inputs.flip(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % SAVE_EVERY == 0:
                checkpointer.save(step, model)
    checkpointer.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
