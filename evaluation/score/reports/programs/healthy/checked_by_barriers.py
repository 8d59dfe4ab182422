"""Every ten steps a monitored barrier passes, and each rank looks in the store for a wish to stop: none comes."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

STEPS = 80


def is_asked_to_stop(store: dist.Store) -> bool:
    """A key that is missing is the usual case, and shows as a time-out."""
    try:
        store.wait(["stop"], timedelta(milliseconds=20))
    except dist.DistStoreError:
        return False
    return True


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore("wishes", dist.TCPStore(address, port, is_master=False))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 120), nn.ReLU(), nn.Linear(120, 6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 20)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(83 * step + rank)
            inputs = torch.randn(32, 24, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 6, (32,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % 10 == 9:
                dist.monitored_barrier(timeout=timedelta(seconds=60))
                if is_asked_to_stop(store):
                    break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
