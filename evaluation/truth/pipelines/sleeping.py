"""Real gloo pipelines of actions with known durations. The actions sleep, because there are more ranks than cores."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage

import traincope
from evaluation.truth.machines.links import SlowLinks
from evaluation.truth.pipelines.cases import STEPS, UNIT_SECONDS, Case
from traincope.engine.optimizer.clipping import clip, gradient_norm
from traincope.engine.ranks.mesh import Layout
from traincope.engine.ranks.torch_private import Schedule
from traincope.plan.pipeline.actions import Times
from traincope.plan.pipeline.orders import SCHEDULES, orders

RING_STARTS = (0.3, 0.6)
"""Times in an F, or in the first unit of a backward, at which the first and the other ranks of a ring send; the
first ranks wait.
"""


class Clocked(NamedTuple):
    """Seconds by a rank's own clock."""

    waited: list[float]
    """Waits of its stages in their rings, in each step."""
    actions: list[dict[tuple[str, int], list[float]]]
    """(kind, stage) -> its actions, in each step."""


class Slow(torch.autograd.Function):
    """The identity, with known ends in forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stage: "Stage") -> Tensor:
        ctx.stage = stage
        stage.go_round()
        stage.sleep_until(units=stage.times.forward + stage.late_units)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.stage.go_round()
        ctx.stage.sleep_until(units=ctx.stage.times.backward_input)
        return gradients[0], None


class Stage(nn.Module):
    """A linear layer, then a sleep for the rest of the action's time after torch's own."""

    def __init__(self, factor: float, times: Times, ring: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.times = times
        self.linear = nn.Linear(4, 4)
        self.ring = ring
        self.waited_seconds = 0.0
        """Waits in the ring, by the stage's own clock."""
        self.unit_seconds = UNIT_SECONDS * factor
        self.began = 0.0
        self.late_units = 0.0
        """Additional time of the current forward."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Slow.apply(self.linear(x), self)
        return result

    def sleep_until(self, *, units: float) -> None:
        time.sleep(max(self.began + units * self.unit_seconds - time.monotonic(), 0))

    def go_round(self) -> None:
        """Each rank of the ring sends to the next, the first rank earlier than the others."""
        if self.ring is None:
            return
        rank, ranks = dist.get_rank(self.ring), dist.get_world_size(self.ring)
        self.sleep_until(units=RING_STARTS[rank > 0])
        arriving = torch.empty(64)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.ones(64), group=self.ring, group_peer=(rank + 1) % ranks),
                dist.P2POp(dist.irecv, arriving, group=self.ring, group_peer=(rank - 1) % ranks),
            ]
        )
        began = time.monotonic()
        for work in works:
            work.wait()
        self.waited_seconds += time.monotonic() - began


class TimedStage(PipelineStage):
    """Notifies its module when an action begins."""

    submod: Stage
    case: Case
    units_of_weight = 1.0
    """Units from an action's begin to the end of W: of W itself, or of the B that contains it."""
    seconds: dict[tuple[str, int], list[float]]
    """Durations of the actions by this rank's own clock."""

    @contextmanager
    def clocked(self, kind: str) -> Iterator[None]:
        began = self.submod.began = time.monotonic()
        yield
        self.seconds[kind, self.stage_index].append(time.monotonic() - began)

    def forward_one_chunk(self, microbatch: int, *args: Any, **kwargs: Any) -> Any:
        is_late = self.case.late_action == ("F", self.stage_index, microbatch)
        self.submod.late_units = self.case.late if is_late else 0.0
        with self.clocked("F"):
            return super().forward_one_chunk(microbatch, *args, **kwargs)

    def backward_one_chunk(self, *args: Any, full_backward: bool = True, **kwargs: Any) -> Any:
        self.units_of_weight = self.case.times.backward
        with self.clocked("B" if full_backward else "I"):
            return super().backward_one_chunk(*args, full_backward=full_backward, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        self.units_of_weight = self.case.times.backward_weight
        with self.clocked("W"):
            return super().backward_weight_one_chunk(*args, **kwargs)

    def weight_gradient(self) -> Callable[[], None]:
        """Runs as W, or after I as the rest of B: a sleep, because I computed all of it."""
        return lambda: self.submod.sleep_until(units=self.units_of_weight)


def train(directory: str, case: Case) -> Clocked:
    """Runs on every rank of a pool."""
    waited, actions = [0.0], []
    with traincope.run(directory, budget=None) as recorded:
        sizes = {"pp": case.shape.ranks} | ({"cp": case.ring} if case.ring > 1 else {})
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        held = SCHEDULES[case.schedule].placement(mesh.get_local_rank("pp"), case.shape)
        ring = mesh.get_group("cp") if case.ring > 1 else None
        modules = {stage: Stage(case.factor(stage), case.times, ring) for stage in held}
        stages = [one_stage(module, stage, case, mesh.get_group("pp")) for stage, module in modules.items()]
        schedule = Schedule(
            stages,
            orders=orders(case.schedule, case.shape),
            microbatches=case.shape.microbatches,
            loss=lambda output, target: (output - target).square().sum(),
        )
        parameters = [parameter for module in modules.values() for parameter in module.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        batch = torch.ones(2 * case.shape.microbatches, 4)
        links = {("recv", mesh.get_group("pp").group_name): case.link * UNIT_SECONDS}
        with SlowLinks(links) if case.link else nullcontext():
            for _ in range(STEPS):
                last = held[-1] == case.shape.stages - 1
                schedule.step(*((batch,) if held[0] == 0 else ()), target=batch if last else None, losses=[])
                if case.clips:
                    clip(parameters, norm=gradient_norm(parameters, layout=Layout(mesh=mesh)), limit=1.0)
                optimizer.step()
                optimizer.zero_grad()
                recorded.step()
                waited.append(sum(module.waited_seconds for module in modules.values()))
                actions.append({key: stage.seconds.pop(key) for stage in stages for key in list(stage.seconds)})
    return Clocked(waited=[after - before for before, after in pairwise(waited)], actions=actions)


def one_stage(module: Stage, stage: int, case: Case, group: dist.ProcessGroup) -> TimedStage:
    shape = torch.empty(2, 4, requires_grad=True)
    timed = TimedStage(
        module,
        stage_index=stage,
        num_stages=case.shape.stages,
        device=torch.device("cpu"),
        group=group,
        input_args=shape,
        output_args=shape,
    )
    timed.case, timed.dw_builder, timed.seconds = case, timed.weight_gradient, defaultdict(list)
    return timed
