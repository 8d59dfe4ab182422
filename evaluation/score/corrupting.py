"""Small trainings on gloo, one after another, in some of which one bit of the memory flips.

A flip writes to the memory itself, as a fault of the memory does: torch does not see it.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import traincope

WIDTH, BATCH = 12, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training."""

    name: str
    layout: str
    """`ddp`, `hsdp`, `fsdp`, or `tp`, whose norms are replicated."""
    ranks: int
    dtype: str
    steps: int
    every: int
    """Steps from one check to the next; 0: no checks."""
    rank: int | None = None
    """The rank whose bit flips; None: a healthy training."""
    after_step: int = 0
    """Step after which it flips."""
    state: str | None = None
    """The optimizer's state in which it flips; None: a parameter."""
    tensor: float = 0.0
    """Place of the tensor among those that can be flipped, from 0 to 1; `element` likewise."""
    element: float = 0.0
    bit: int = 0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def build(case: Case) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).to(getattr(torch, case.dtype))
    match case.layout:
        case "ddp":
            return nn.parallel.DistributedDataParallel(model)
        case "tp":
            return split(model)
        case "hsdp":
            shards = 2 if case.ranks == 4 else 1
            return shard(model, ("dp_replicate", "dp_shard"), (case.ranks // shards, shards))
        case "fsdp":
            return shard(model, ("fsdp",), (case.ranks,))
    raise ValueError(case.layout)


def shard(model: nn.Module, axes: tuple[str, ...], shape: tuple[int, ...]) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", shape, mesh_dim_names=axes)
    for block in model.children():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def split(model: nn.Module) -> nn.Module:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    for block in model.children():
        parallelize_module(block, mesh, plan)
    inputs = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Shard(1), use_local_output=False)
    return parallelize_module(model, mesh, inputs)


def train_all(cases: Sequence[Case], directory: Path) -> None:
    """Train each case on this rank, as a run of its own in `directory`."""
    for case in cases:
        train(case, directory)


def train(case: Case, directory: Path) -> list[float]:
    """Train, and return the losses of this rank."""
    model = build(case)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    data = torch.Generator().manual_seed(0 if case.layout == "tp" else dist.get_rank())
    losses = []
    with traincope.run(directory / case.name, agent=False, budget=None, corruption_check_steps=case.every) as run:
        for step in range(case.steps):
            x = torch.randn(BATCH, 12 // case.ranks if case.layout == "tp" else 3, WIDTH, generator=data)
            loss = model(x.to(getattr(torch, case.dtype))).square().mean()
            if hasattr(loss, "full_tensor"):
                loss = loss.full_tensor()
            loss.backward()
            for parameter in model.parameters() if case.layout == "tp" else ():
                sum_over_ranks(parameter)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            run.step()
            if dist.get_rank() == case.rank and step == case.after_step:
                flip(case, optimizer)
    dist.barrier()
    return losses


def sum_over_ranks(parameter: nn.Parameter) -> None:
    """Sum gradients of which each rank has a part: those of norms, whose input is split over ranks."""
    from torch.distributed.tensor import DTensor, Replicate

    gradient = parameter.grad
    if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
        parameter.grad = gradient.redistribute(placements=[Replicate()])


def flip(case: Case, optimizer: torch.optim.Optimizer) -> None:
    """Flip the bit of the case."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if case.layout == "tp":
        parameters = [parameter for parameter in parameters if is_replicated(parameter)]
    states = [parameter if case.state is None else optimizer.state[parameter][case.state] for parameter in parameters]
    local = [state.to_local() if hasattr(state, "to_local") else state for state in states]
    local = [tensor.detach() for tensor in local if tensor.numel()]
    tensor = local[int(case.tensor * len(local))]
    bits = 8 * tensor.element_size()
    at = int(case.element * tensor.numel()) * tensor.element_size() + case.bit % bits // 8
    address = tensor.data_ptr() + at
    value = ctypes.c_uint8.from_address(address)
    value.value ^= 1 << (case.bit % 8)


def is_replicated(tensor: Any) -> bool:
    return hasattr(tensor, "placements") and all(placement.is_replicate() for placement in tensor.placements)
