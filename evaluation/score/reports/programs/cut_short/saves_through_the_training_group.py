"""A thread gathers what is to be saved through the group that the gradients use. Once, on rank 1, it comes later."""

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, WIDTH = 90, 20, 96


class AsyncCheckpointer:
    """Copy the state in the training thread, and write it in another one."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.pending: Future | None = None

    def save(self, step: int, model: nn.Module) -> None:
        if self.pending is not None:
            self.pending.result()
        state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.pending = self.executor.submit(self.write, step, state)

    def write(self, step: int, state: dict[str, torch.Tensor]) -> None:
        path = f"step{step}-rank{self.rank}.pt"
        torch.save(state, path)
        if (self.rank, step) == (1, 40):
            time.sleep(0.6)  # The disk of this host is busy.
        sizes = [0] * dist.get_world_size()
        dist.all_gather_object(sizes, os.path.getsize(path))
        if self.rank == 0:
            with open(f"step{step}.index", "w") as index:
                index.write("\n".join(map(str, sizes)))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpointer = AsyncCheckpointer(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            inputs = torch.randn(48, WIDTH, generator=torch.Generator().manual_seed(89 * step + rank))
            time.sleep(0.1)
            loss = mse_loss(model(inputs), inputs.roll(1, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % EVERY == 0:
                checkpointer.save(step, model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
