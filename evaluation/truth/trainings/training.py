"""Workloads as real trainings on gloo ranks, with torch's own DDP, FSDP2, functional collectives and loader."""

import io
import multiprocessing
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import traincope
from evaluation.truth.machines.links import SlowLinks
from evaluation.truth.trainings.workloads import LAYERS, Workload

WIDTH = 8
ONE_BUCKET_A_LAYER = 4 * WIDTH * WIDTH / 2**20
"""MiB of a layer's float32 weights."""
OWN_STEPS = 8
"""Steps without recording, the first of which is warm-up."""


class Slow(torch.autograd.Function):
    """The identity with sleeps: in forward from the begin of the layer, in backward for the full time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: "Layer", began: float) -> Tensor:
        ctx.layer = layer
        time.sleep(max(began + layer.forward_seconds - time.monotonic(), 0))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.layer.backward_seconds)
        return gradients[0], None, None


class Summed(torch.autograd.Function):
    """Sum over a group in forward, and of the gradient in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return functional.wait_tensor(functional.all_reduce(x, "sum", group))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return functional.wait_tensor(functional.all_reduce(gradients[0], "sum", ctx.group)), None


class Layer(nn.Module):
    """A linear layer with a given duration; with a group, its output is summed over it."""

    def __init__(self, *, forward: float, backward: float = 0.0, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.forward_seconds, self.backward_seconds = forward, backward
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        began = time.monotonic()
        result: Tensor = Slow.apply(self.linear(x), self, began)
        return result if self.group is None else Summed.apply(result, self.group)


class Batches(Dataset[Tensor]):
    """Batches of a loader, each with a given loading time."""

    def __init__(self, number: int, *, seconds: float) -> None:
        self._number, self._seconds = number, seconds

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self._seconds)
        return torch.ones(4, WIDTH)


class SlowToSave:
    """Content of a checkpoint with a given writing time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        time.sleep(self._seconds)
        return int, ()


def train(directory: str, workload: Workload, steps: int) -> tuple[int, int]:
    """Runs on every rank of a pool. The first step is warm-up. Returns the result of `torchs_own_ns`."""
    mesh = init_device_mesh("cpu", _shape(workload), mesh_dim_names=workload.axes)
    with SlowLinks(_seconds(workload, mesh)):
        with traincope.run(directory, budget=None) as run:
            _Training(workload, mesh).steps(steps, after_each=run.step)
        return torchs_own_ns(workload, mesh)


def torchs_own_ns(workload: Workload, mesh: DeviceMesh) -> tuple[int, int]:
    """CPU time that the same model takes in forward and in backward, without recording.

    Its sleeps and links stay: after a sleep, the caches are cold, and torch's own work takes several times as long.
    """
    model, forwards, backwards = _Training(workload, mesh).model, [], []
    for _ in range(OWN_STEPS):
        began = time.thread_time_ns()
        loss = model(torch.ones(4, WIDTH)).mean()
        forwarded = time.thread_time_ns()
        loss.backward()
        forwards.append(forwarded - began)
        backwards.append(time.thread_time_ns() - forwarded)
    return round(median(forwards[1:])), round(median(backwards[1:]))


def _shape(workload: Workload) -> tuple[int, ...]:
    return tuple(len(workload.members(axis, 0)) for axis in workload.axes)


def _seconds(workload: Workload, mesh: DeviceMesh) -> Mapping[tuple[str, str], float]:
    """Added seconds by the names of this rank's groups."""
    links = workload.links_ns.items()
    return {(operation, mesh.get_group(axis).group_name): ns / 1e9 for (axis, operation), ns in links}


class _Training:
    """The training of one rank."""

    def __init__(self, workload: Workload, mesh: DeviceMesh) -> None:
        rank = dist.get_rank()

        def seconds(each_ns: tuple[int, ...]) -> float:
            return workload.value_of(each_ns, rank) / 1e9

        self.saves, self.save_seconds = any(workload.save_ns), seconds(workload.save_ns)
        self.late_seconds, self.data_seconds = seconds(workload.late_ns), seconds(workload.data_ns)
        self.prefetch = workload.prefetch
        if self.prefetch:
            # A pool's ranks are daemons, which may not have children; these end with the loader.
            multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        self.beside = Layer(forward=seconds(workload.overlapped_ns))
        self.evaluates, self.evaluated = any(workload.evaluate_ns), Layer(forward=seconds(workload.evaluate_ns)).eval()
        self.reduces = mesh.get_group("dp") if workload.parallel in ("async", "dp x tp") else None
        self.overlaps = workload.parallel == "async"
        summed = mesh.get_group("tp") if "tp" in workload.axes else None
        forward, backward = seconds(workload.forward_ns), seconds(workload.backward_ns)
        layers = [Layer(forward=forward, backward=backward, group=summed) for _ in range(LAYERS)]
        self.model = _wrapped(nn.Sequential(*layers), workload.parallel, mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def steps(self, number: int, *, after_each: Callable[[], None]) -> None:
        batches = Batches(number, seconds=self.data_seconds)
        for batch in DataLoader(batches, batch_size=None, num_workers=self.prefetch):
            time.sleep(self.late_seconds)
            self.model(batch).mean().backward()
            self._reduce(batch)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.saves:
                torch.save(SlowToSave(self.save_seconds), io.BytesIO())
            if self.evaluates:
                with torch.no_grad():
                    self.evaluated(batch)
            after_each()

    def _reduce(self, batch: Tensor) -> None:
        """Reduce the gradients by hand, as training loops do."""
        if self.reduces is None:
            return
        work = dist.all_reduce(torch.ones(WIDTH), group=self.reduces, async_op=True)
        if self.overlaps:
            self.beside(batch)
        work.wait()


def _wrapped(model: nn.Sequential, parallel: str, mesh: DeviceMesh) -> nn.Module:
    if parallel == "ddp":
        return DistributedDataParallel(model, process_group=mesh.get_group("dp"), bucket_cap_mb=ONE_BUCKET_A_LAYER)
    if parallel == "fsdp":
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model
