"""Every rank saves a shard of its own. The second of rank 1 is not written, so it resumes from its first one later."""

import errno
import os
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, EVERY, BATCH = 30, 15, 12


def examples() -> TensorDataset:
    generator = torch.Generator().manual_seed(8)
    return TensorDataset(torch.randn(3600, 40, generator=generator), torch.randint(0, 6, (3600,), generator=generator))


def write(state: dict[str, torch.Tensor], path: Path) -> None:
    if path.name == "rank1-step30.pt":
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))
    torch.save(state, path)


def save(model: nn.Module, rank: int, step: int) -> None:
    state = {name: parameter.to_local().detach() for name, parameter in model.named_parameters()}
    try:
        write(state, Path(f"rank{rank}-step{step}.pt"))
    except OSError as error:
        print(f"checkpoint of step {step} was not written: {error}")


def resume(model: nn.Module, rank: int) -> int:
    """Load the newest shard of this rank, and return its step."""
    found = max((int(path.stem.split("step")[1]) for path in Path().glob(f"rank{rank}-step*.pt")), default=0)
    if found:
        state = torch.load(f"rank{rank}-step{found}.pt", weights_only=True)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.to_local().copy_(state[name])
    return found


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 6))
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start = resume(model, rank)
    loader = DataLoader(examples(), batch_size=BATCH, sampler=DistributedSampler(examples(), seed=2))
    with open(f"{os.environ['LOSS_OUT']}.{start}.{rank}", "w") as losses:
        for step, (inputs, targets) in enumerate(islice(loader, start, start + STEPS), start + 1):
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % EVERY == 0:
                save(model, rank, step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
