"""The terminal in which a person started `torchrun` is closed while the training runs."""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, CLOSED = 80, 36


def close_terminal() -> None:
    """What the kernel does to the launcher then."""
    os.kill(os.getppid(), signal.SIGHUP)
    time.sleep(60)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(200, 64), encoder, nn.Linear(64, 200)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            if rank == 1 and step == CLOSED:
                close_terminal()
            tokens = torch.randint(0, 200, (4, 24), generator=torch.Generator().manual_seed(43 * step + rank))
            loss = cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
