"""The user gave the training a limit of time. All ranks agree that it is over, save together and end well."""

import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

MOST_STEPS = 5_000


@dataclass
class Timer:
    """The limit of a run. Any rank that has no time left ends it for all."""

    seconds: float
    began: float = 0.0

    def start(self) -> None:
        self.began = time.monotonic()

    def is_over(self) -> bool:
        over = torch.tensor(time.monotonic() - self.began >= self.seconds, dtype=torch.uint8)
        dist.all_reduce(over, dist.ReduceOp.MAX)
        return bool(over)


class Trainer:
    def __init__(self, rank: int, timer: Timer) -> None:
        self.rank, self.timer = rank, timer
        net = nn.Sequential(nn.Linear(80, 240), nn.GELU(), nn.Linear(240, 240), nn.GELU(), nn.Linear(240, 80))
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        self.average = torch.optim.swa_utils.AveragedModel(net, use_buffers=True)

    def step(self, number: int) -> float:
        inputs = torch.randn(96, 80, generator=torch.Generator().manual_seed(409 * number + self.rank))
        loss = mse_loss(self.model(inputs), inputs.roll(3, 1))
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.average.update_parameters(self.model.module)
        return loss.item()

    def fit(self) -> None:
        self.timer.start()
        with open(f"{os.environ['LOSS_OUT']}.{self.rank}", "w") as losses:
            for number in range(MOST_STEPS):
                print(self.step(number).hex(), file=losses, flush=True)
                time.sleep(0.03)
                if self.timer.is_over():
                    break
        dcp.save({"model": self.model.module.state_dict()}, checkpoint_id="last")


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    Trainer(dist.get_rank(), Timer(seconds=9.0)).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
