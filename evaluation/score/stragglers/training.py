"""A small training under torchrun whose work is sleeps: `python training.py LAYOUT STEPS [LINK_SECONDS LINK_RANK]`.

It uses no code of this project but the slow links of the tests. A step takes STEP_SECONDS on each rank. Ranks that
sleep need no core, so that four of them are equal on two cores. LAYOUT: `ddp`, `fsdp` (FSDP2), `tp`, `pipeline` (two
stages and two replicas), `plain`, a loop that reduces each of its 11 gradients itself, or `generator`, the same without
a DataLoader: on rank 1, its batches take GENERATOR_SECONDS longer. With LINK_SECONDS, results of collectives arrive
later by so much, on all ranks or on LINK_RANK alone.
"""

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

from evaluation.truth.machines.links import SlowLinks

WIDTH, BATCH = 16, 8
STEP_SECONDS = 0.3
FORWARD_SECONDS, BACKWARD_SECONDS = 0.09, 0.18
"""All layers of a rank. The rest is communication, the optimizer and data."""
LAYERS = 4
GENERATOR_SECONDS = 0.015

Train = Callable[[torch.Tensor], None]


class Work(torch.autograd.Function):
    """Work of a known time, in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, forward_seconds: float, backward_seconds: float) -> torch.Tensor:
        ctx.seconds = backward_seconds
        time.sleep(forward_seconds)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(ctx.seconds)
        return gradients[0], None, None


class Layer(nn.Module):
    def __init__(self, parts: int) -> None:
        super().__init__()
        self.linear, self.parts = nn.Linear(WIDTH, WIDTH), parts

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Work.apply(self.linear(inputs), FORWARD_SECONDS / self.parts, BACKWARD_SECONDS / self.parts)


def layers(count: int = LAYERS, *, microbatches: int = 1) -> nn.Sequential:
    return nn.Sequential(*(Layer(count * microbatches) for _ in range(count)))


def loss_backward(model: nn.Module) -> Train:
    return lambda batch: model(batch).square().mean().backward()


def ddp() -> tuple[nn.Module, Train]:
    model = nn.parallel.DistributedDataParallel(layers())
    return model, loss_backward(model)


def fsdp() -> tuple[nn.Module, Train]:
    from torch.distributed.fsdp import fully_shard

    model = layers()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, loss_backward(model)


def tp() -> tuple[nn.Module, Train]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    hidden = WIDTH * dist.get_world_size()
    blocks = [
        nn.ModuleDict({"up": nn.Linear(WIDTH, hidden), "down": nn.Linear(hidden, WIDTH)}) for _ in range(LAYERS // 2)
    ]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(blocks)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                inner = Work.apply(block["up"](inputs), 2 * FORWARD_SECONDS / LAYERS, 2 * BACKWARD_SECONDS / LAYERS)
                inputs = block["down"](inner)
            return inputs

    model = Model()
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model, loss_backward(model)


def plain() -> tuple[nn.Module, Train]:
    model = nn.Sequential(*layers(5), nn.Linear(WIDTH, 1, bias=False))

    def train(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    return model, train


def pipeline() -> tuple[nn.Module, Train]:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    microbatches = 2
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "dp"))
    rank, size = mesh["pp"].get_local_rank(), 2
    model = layers(2, microbatches=2 * microbatches)
    stage = PipelineStage(model, rank, size, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = ScheduleGPipe(
        stage, n_microbatches=microbatches, loss_fn=lambda output, target: (output - target).square().mean()
    )

    def train(batch: torch.Tensor) -> None:
        inputs = (batch,) if rank == 0 else ()
        schedule.step(*inputs, **({"target": batch} if rank == size - 1 else {}))
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=mesh["dp"].get_group())

    return model, train


LAYOUTS: dict[str, Callable[[], tuple[nn.Module, Train]]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "tp": tp,
    "plain": plain,
    "generator": plain,
    "pipeline": pipeline,
}


class Links(dict[tuple[str, str], float]):
    """The same delay for every group."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def get(self, _key: Any, _default: Any = None) -> Any:
        return self._seconds


def batches(layout: str, steps: int) -> Iterable[torch.Tensor]:
    if layout != "generator":
        return DataLoader(torch.randn(BATCH * steps, WIDTH), batch_size=BATCH)
    return (generated() for _ in range(steps))


def generated() -> torch.Tensor:
    time.sleep(GENERATOR_SECONDS if dist.get_rank() == 1 else 0.0)
    return torch.randn(BATCH, WIDTH)


def main(layout: str, steps: int, link_seconds: float, link_rank: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, train = LAYOUTS[layout]()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    slow = link_seconds and link_rank in (-1, dist.get_rank())
    with SlowLinks(Links(link_seconds)) if slow else nullcontext():
        for batch in batches(layout, steps):
            train(batch)
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *(map(float, sys.argv[3:5]) if len(sys.argv) > 3 else (0.0, -1)))
