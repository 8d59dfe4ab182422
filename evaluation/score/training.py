"""A small training under torchrun: `python training.py LAYOUT STEPS DIRECTORY`. It uses no code of this project.

LAYOUT: `ddp`, `fsdp` (FSDP2), `tp` (tensor parallel), `pipeline` (1F1B), or `plain`, a loop with its own collectives.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

WIDTH, BATCH = 32, 8
STEP_SECONDS = 0.02
SAVED_STEPS = 30
"""A checkpoint of each rank after so many steps."""

Backward = Callable[[torch.Tensor], None]
"""Forward and backward of one batch."""


def main(layout: str, steps: int, directory: Path) -> None:
    torch.manual_seed(0)
    batches = iter(DataLoader(torch.randn(BATCH * steps, WIDTH), batch_size=BATCH, num_workers=1))
    # The worker is forked by now. With gloo's threads, one may hold a lock that CPython 3.11 then needs in the child.
    dist.init_process_group("gloo")
    model, train = LAYOUTS[layout]()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step, batch in enumerate(batches, 1):
        time.sleep(STEP_SECONDS)
        train(batch)
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVED_STEPS == 0:
            torch.save(torch.zeros(1), directory / f"step-{dist.get_rank()}.pt")
    torch.save(torch.zeros(1), directory / f"model-{dist.get_rank()}.pt")
    dist.destroy_process_group()


def layers(count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(count)))


def ddp() -> tuple[nn.Module, Backward]:
    model = nn.parallel.DistributedDataParallel(layers(3))
    return model, lambda batch: model(batch).square().mean().backward()


def fsdp() -> tuple[nn.Module, Backward]:
    from torch.distributed.fsdp import fully_shard

    model = layers(3)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, lambda batch: model(batch).square().mean().backward()


def tp() -> tuple[nn.Module, Backward]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    hidden = WIDTH // 2 * dist.get_world_size()  # a multiple of any number of ranks: torch needs equal shards
    model = nn.Sequential(nn.Linear(WIDTH, hidden), nn.GELU(), nn.Linear(hidden, WIDTH))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model, lambda batch: model(batch).square().mean().backward()


def plain() -> tuple[nn.Module, Backward]:
    """Reduces its gradients itself, and the loss in pairs of ranks."""
    model = layers(3)
    pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size() - 1, 2)]
    own = next((pair for pair in pairs if dist.get_rank(pair) >= 0), None)

    def train(batch: torch.Tensor) -> None:
        loss = model(batch).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if own is not None:
            dist.all_reduce(loss.detach(), group=own)

    return model, train


def pipeline() -> tuple[nn.Module, Backward]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, size = dist.get_rank(), dist.get_world_size()
    model = layers(1)
    stage = PipelineStage(model, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(
        stage, n_microbatches=max(BATCH // 2, size), loss_fn=lambda output, target: (output - target).square().mean()
    )

    def train(batch: torch.Tensor) -> None:
        inputs = (batch,) if rank == 0 else ()
        schedule.step(*inputs, **({"target": batch} if rank == size - 1 else {}))

    return model, train


LAYOUTS: dict[str, Callable[[], tuple[nn.Module, Backward]]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "tp": tp,
    "plain": plain,
    "pipeline": pipeline,
}

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
