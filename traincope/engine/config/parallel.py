"""The table `[parallel]`: ranks on the mesh axes, and what each axis requires of the others."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from traincope.engine.config.checks import require, require_positive
from traincope.plan.pipeline.orders import SCHEDULES, Shape, resolve_schedule

AXES = ("pp", "dp_replicate", "fsdp", "dp", "cp", "tp")
"""Axes whose sizes multiply to the world size, outermost first. Ranks that communicate most are neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Layout of the ranks. The product of the sizes is the world size."""

    pp: int = 1
    """Ranks of the pipeline."""
    dp_replicate: int = 1
    """Replicas of the sharded model (HSDP). Needs fsdp > 1 or cp > 1."""
    fsdp: int = 1
    """Ranks that share one copy of parameters, gradients and optimizer state (FSDP2)."""
    dp: int = 1
    """Replicas of the whole model (DDP), or of its parts with tp or pp."""
    cp: int = 1
    """Ranks that share each sequence (context parallelism). Parameters are sharded over fsdp x cp; with dp they are
    whole on each rank."""
    cp_method: Literal["ring", "ulysses"] = "ring"
    """Attention over split sequences: `ring` passes keys and values round a ring; `ulysses` exchanges heads."""
    tp: int = 1
    """Ranks that share each matrix product (tensor parallelism)."""
    sequence_parallel: bool = True
    """Split norms and the residual stream along the sequence over tp, instead of repeating them on each tp rank."""
    ep: int = 1
    """Ranks that share the experts of each layer (expert parallelism). They are a part of the fsdp x cp ranks, so ep
    does not multiply the world size."""
    ranks: int | None = None
    """World size that this layout is meant for, checked against the product of the sizes. None: the product."""
    schedule: str = "1f1b"
    """Order of a pipeline's actions: gpipe, 1f1b, interleaved, zb-1p, zb-v, dualpipev or naive."""
    virtual: int | None = None
    """Stages of each pipeline rank. None: the fewest that the schedule allows (zb-v always has two)."""
    microbatches: int = 1
    """Number of microbatches of a pipeline's batch."""

    def __post_init__(self) -> None:
        for name in (*AXES, "ep", "microbatches"):
            require_positive(getattr(self, name), key=f"parallel.{name}")
        require(
            self.schedule in SCHEDULES,
            f"parallel.schedule = {self.schedule!r} is not known; choose one of {', '.join(SCHEDULES)}",
        )
        require(
            self.dp == 1 or (self.fsdp == 1 and self.dp_replicate == 1),
            f"parallel.dp = {self.dp} (DDP) cannot be combined with fsdp = {self.fsdp} and dp_replicate = "
            f"{self.dp_replicate}; to replicate a sharded model set dp_replicate and fsdp, and dp = 1",
        )
        require(
            self.dp_replicate == 1 or self.fsdp * self.cp > 1,
            f"parallel.dp_replicate = {self.dp_replicate} needs fsdp > 1 or cp > 1; to replicate without shards set dp",
        )
        require(
            self.dp == 1 or self.ep == 1,
            f"parallel.ep = {self.ep} spreads experts over ranks that share parameters, but with dp = {self.dp} (DDP) "
            "each rank has all parameters; set fsdp or cp instead, and dp = 1",
        )
        require(
            self.shards % self.ep == 0,
            f"parallel.ep = {self.ep} does not divide fsdp x cp = {self.shards}, the ranks that share the experts; "
            "change one of them",
        )
        require(
            self.pp > 1 or self.microbatches == 1,
            f"parallel.microbatches = {self.microbatches} needs pp > 1; without a pipeline set train.accumulation",
        )
        self._check_schedule()
        if self.ranks is not None:
            self.check_world_size(self.ranks)

    def _check_schedule(self) -> None:
        if self.virtual is not None:
            require_positive(self.virtual, key="parallel.virtual")
            require(
                self.pp > 1 or self.virtual == 1,
                f"parallel.virtual = {self.virtual} needs pp > 1; without a pipeline a rank has all layers at once",
            )
        if self.pp == 1:
            return
        schedule = SCHEDULES[self.order_name]
        refusal = schedule.refusal(self.pipeline)
        require(
            refusal is None,
            f"parallel.schedule = {self.order_name!r} {refusal}; change parallel.microbatches or parallel.virtual",
        )
        require(
            self.dp == 1 or not schedule.splits_backward,
            f"parallel.schedule = {self.schedule!r} splits backward, which DDP (dp = {self.dp}) cannot follow; "
            "set fsdp or dp_replicate instead, or another schedule",
        )

    @property
    def order_name(self) -> str:
        """Name of the schedule in `plan.orders`. 1F1B with several stages per rank is interleaved 1F1B."""
        return resolve_schedule(self.schedule, chunks=self.virtual)[0]

    @property
    def splits_backward(self) -> bool:
        """The pipeline computes gradients of inputs and of weights apart."""
        return self.pp > 1 and SCHEDULES[self.order_name].splits_backward

    @property
    def pipeline(self) -> Shape:
        """Size of the pipeline. Without a pipeline: one rank with one stage."""
        chunks = resolve_schedule(self.schedule, chunks=self.virtual)[1] if self.pp > 1 else 1
        return Shape(ranks=self.pp, microbatches=self.microbatches, chunks=chunks)

    @property
    def shards(self) -> int:
        """Ranks that FSDP divides parameters over; 1 without FSDP."""
        return self.fsdp * self.cp if self.dp == 1 else 1

    @property
    def replicas(self) -> int:
        """Ranks that see different sequences: the number of slices of a global batch."""
        return self.dp_replicate * self.fsdp * self.dp

    @property
    def world_size(self) -> int:
        return math.prod(getattr(self, axis) for axis in AXES)

    def resized(self, ranks: int) -> "ParallelConfig":
        """This layout on another number of ranks: the data-parallel axis gets larger or smaller, the others stay.

        With `dp_replicate` > 1 the number of replicas changes, and not that of shards. Raises ConfigError if the ranks
        do not fill such a layout.
        """
        axis = next((name for name in ("dp_replicate", "dp", "fsdp") if getattr(self, name) > 1), "dp")
        others = self.world_size // getattr(self, axis)
        require(
            ranks % others == 0,
            f"{ranks} ranks do not divide by {others}, the product of all axes but {axis}, which alone adapts to the "
            "ranks; change a size in [parallel] or the number of ranks",
        )
        return replace(self, **{axis: ranks // others}, ranks=None)

    def check_world_size(self, ranks: int) -> None:
        """Raise ConfigError unless this layout fills exactly `ranks` ranks."""
        product = " x ".join(f"{axis} {size}" for axis in AXES if (size := getattr(self, axis)) > 1) or "no axis"
        require(
            self.world_size == ranks,
            f"{product} = {self.world_size} ranks, but there are {ranks}; "
            "change a size in [parallel] or the number of ranks",
        )
