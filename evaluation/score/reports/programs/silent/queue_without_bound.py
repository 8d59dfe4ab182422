"""Rank 0 hands its weights to a thread that sends them to a server. The thread is slower than the steps."""

import os
import queue
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH, SEND_SECONDS, STEP_SECONDS = 140, 448, 0.5, 0.03


class Publisher:
    def __init__(self) -> None:
        self.versions: queue.Queue[dict[str, torch.Tensor]] = queue.Queue()
        threading.Thread(target=self.send_all, daemon=True, name="publisher").start()

    def publish(self, model: nn.Module) -> None:
        self.versions.put({name: value.detach().clone() for name, value in model.state_dict().items()})

    def send_all(self) -> None:
        """Send one version after the other over a slow connection."""
        while True:
            version = self.versions.get()
            time.sleep(SEND_SECONDS)
            del version


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ELU(), nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    publisher = Publisher() if rank == 0 else None
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            time.sleep(STEP_SECONDS)
            inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(167 * step + rank))
            loss = mse_loss(model(inputs), inputs.abs())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if publisher is not None:
                publisher.publish(model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
