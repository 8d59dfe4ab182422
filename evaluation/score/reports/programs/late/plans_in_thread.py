"""A checkpoint is written in the background. On rank 0 a thread merges and pickles the plans, and it holds the GIL."""

import os
import pickle
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 80


class BackgroundSave:
    """Plans of all ranks are merged into one, again and again until the training is done."""

    def __init__(self) -> None:
        self.done = False
        self.thread = threading.Thread(target=self.write_plans, name="checkpoint", daemon=True)
        self.thread.start()

    def write_plans(self) -> None:
        while not self.done:
            plan = {f"layer.{index}": (index, index * 7 % 13, [index] * 4) for index in range(20_000)}
            merged = sorted(plan.items(), key=lambda item: item[1][1])
            pickle.dumps(dict(merged))

    def stop(self) -> None:
        self.done = True
        self.thread.join()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(30)]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 32), *layers, nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    save = BackgroundSave() if rank == 0 else None
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(19 * step + rank)
            inputs = torch.randn(16, 24, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 4, (16,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    if save:
        save.stop()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
