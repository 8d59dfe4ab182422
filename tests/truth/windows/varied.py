"""Real gloo trainings whose steps vary: drift, a lasting change, slow steps of single ranks, checkpoints, slow batches.

They are recorded in full. Work sleeps, because there are more ranks than cores.
"""

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import traincope
from tests.truth.pipelines.cases import Case
from tests.truth.pipelines.sleeping import Stage, one_stage
from tests.truth.trainings.training import ONE_BUCKET_A_LAYER, WIDTH, Layer, SlowToSave
from traincope.engine.ranks.torch_private import Schedule
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders

LAYERS = 2
SAVE_EVERY, LOG_EVERY = 50, 20
SAVE_SECONDS = 0.03
FORWARD_SECONDS, BACKWARD_SECONDS, ACTION_SECONDS = 0.004, 0.006, 0.003
CASE = Case(schedule="1f1b", shape=Shape(ranks=2, microbatches=4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Work of a rank in one step."""

    work: float
    """Times its usual work."""
    data_seconds: float


def paces(rank: int, steps: int, *, seed: int) -> Iterator[Pace]:
    """Draw the paces of a rank: a slow drift, a change at 0.6 of the run, and steps that are slow on one rank."""
    drawn = np.random.default_rng([seed, rank])
    for step in range(steps):
        work = float(drawn.lognormal(sigma=0.15)) * (1 + 0.2 * np.sin(2 * np.pi * step / 150))
        work *= 1.3 if step >= 0.6 * steps else 1.0
        work *= 3.0 if drawn.random() < 0.02 else 1.0
        slow_batch = drawn.random() < 0.03
        yield Pace(work=float(work), data_seconds=float(drawn.exponential(0.02 if slow_batch else 0.001)))


class Batches(Dataset[Tensor]):
    """Batches with the loading times of the paces."""

    def __init__(self, paces: list[Pace]) -> None:
        self._paces = paces

    def __len__(self) -> int:
        return len(self._paces)

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self._paces[index].data_seconds)
        return torch.ones(4 * CASE.shape.microbatches // 2, WIDTH)


def train(directory: str, layout: str, steps: int, seed: int) -> None:
    """Runs on every rank of a pool. `layout`: ddp, fsdp or pipeline."""
    own = list(paces(dist.get_rank(), steps, seed=seed))
    axis = {"ddp": "dp", "fsdp": "fsdp", "pipeline": "pp"}[layout]
    with traincope.run(directory, budget=None, agent=False) as run:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(axis,))
        training = Pipeline(mesh) if layout == "pipeline" else Replicas(mesh, layout)
        for step, batch in enumerate(DataLoader(Batches(own), batch_size=None)):
            training.step(batch, own[step].work)
            if step % LOG_EVERY == LOG_EVERY - 1:
                dist.all_reduce(torch.ones(4))
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                torch.save(SlowToSave(SAVE_SECONDS), io.BytesIO())
            run.step()


class Replicas:
    """Ranks with the same model: DDP or FSDP2."""

    def __init__(self, mesh: DeviceMesh, layout: str) -> None:
        self.layers = [Layer(forward=0.0) for _ in range(LAYERS)]
        model = nn.Sequential(*self.layers)
        self.model: nn.Module = model
        if layout == "ddp":
            group = mesh.get_group("dp")
            self.model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=ONE_BUCKET_A_LAYER)
        else:
            for layer in self.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def step(self, batch: Tensor, work: float) -> None:
        for layer in self.layers:
            layer.forward_seconds, layer.backward_seconds = work * FORWARD_SECONDS, work * BACKWARD_SECONDS
        self.model(batch).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Pipeline:
    """Two stages, 1f1b."""

    def __init__(self, mesh: DeviceMesh) -> None:
        (self.stage,) = SCHEDULES[CASE.schedule].placement(mesh.get_local_rank("pp"), CASE.shape)
        self.module = Stage(1.0, None)
        self.schedule = Schedule(
            [one_stage(self.module, self.stage, CASE, mesh.get_group("pp"))],
            orders=orders(CASE.schedule, CASE.shape),
            microbatches=CASE.shape.microbatches,
            loss=lambda output, target: (output - target).square().sum(),
        )
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.0)

    def step(self, batch: Tensor, work: float) -> None:
        self.module.unit_seconds = work * ACTION_SECONDS
        small = batch[:, :4]
        inputs, target = (small,) if self.stage == 0 else (), small if self.stage == CASE.shape.stages - 1 else None
        self.schedule.step(*inputs, target=target, losses=[])
        self.optimizer.step()
        self.optimizer.zero_grad()
