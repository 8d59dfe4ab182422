"""A hook of the program prints errors, and ends the process at once. Rank 1 has a bad index in step 33."""

import os
import sys
import traceback
from types import TracebackType

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


def fail_fast(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Leave without the end of the process group, in which the rank might wait for ever."""
    traceback.print_exception(kind, error, where)
    sys.stderr.flush()
    os._exit(1)


def pack(documents: list[list[int]], order: list[int]) -> torch.Tensor:
    return torch.tensor([documents[index] for index in order])


def main() -> None:
    sys.excepthook = fail_fast
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.EmbeddingBag(100, 64), nn.ReLU(), nn.Linear(64, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(59 * step + rank)
            documents = torch.randint(0, 100, (32, 12), generator=generator).tolist()
            order = list(range(33 if rank == 1 and step == 33 else 32))
            tokens = pack(documents, order)
            loss = cross_entropy(model(tokens), torch.randint(0, 3, (len(order),), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
