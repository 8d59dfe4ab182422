"""Rank 0 makes the text of a debug message of its gradients in each step, which its log then leaves out."""

import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH = 70, 224
logger = logging.getLogger("training")


class Monitor:
    """Logs the main process's view of the training."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def after_backward(self, step: int) -> None:
        for name, parameter in self.model.named_parameters():
            logger.debug(f"step {step}: gradient of {name} is {parameter.grad.tolist()}")

    def after_step(self, step: int, loss: float) -> None:
        if step % 20 == 0:
            logger.info("step %d: loss %.4f", step, loss)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = Monitor(net) if rank == 0 else None
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(67 * step + rank))
            loss = mse_loss(model(inputs), inputs.flip(1))
            optimizer.zero_grad()
            loss.backward()
            if monitor:
                monitor.after_backward(step)
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if monitor:
                monitor.after_step(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
