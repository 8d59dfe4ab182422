"""One replica group: a data-parallel job whose ranks average their gradients with the same ranks of the other groups.

`REPLICA` and `REPLICAS` number the groups. Their own store, at `REPLICA_PORT`, joins each rank with the same rank of
the others. `LATE_SECONDS`: this group computes that much longer in each step.
"""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "30"))


def group_with_replicas(rank: int) -> dist.ProcessGroup:
    """Make the group of this rank and the same rank of all other replica groups."""
    replica, replicas = int(os.environ["REPLICA"]), int(os.environ["REPLICAS"])
    is_master = replica == 0 and rank == 0
    store = dist.TCPStore("127.0.0.1", int(os.environ["REPLICA_PORT"]), is_master=is_master, wait_for_workers=False)
    own = dist.PrefixStore(f"rank {rank}", store)
    group = dist.ProcessGroup(own, replica, replicas)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    backend = dist.ProcessGroupGloo(own, replica, replicas)
    backend._set_sequence_number_for_group()
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    late = float(os.environ.get("LATE_SECONDS", "0"))
    replicas = group_with_replicas(rank)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        loss = wrapped(torch.randn(32, 256, generator=generator)).square().mean()
        torch.autograd.backward(loss)
        time.sleep(0.02 + late)
        for parameter in model.parameters():
            assert parameter.grad is not None
            replicas.allreduce([parameter.grad]).wait()
            parameter.grad /= replicas.size()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if "LOSS_OUT" in os.environ:
        with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as file:
            file.write("\n".join(map(repr, losses)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
