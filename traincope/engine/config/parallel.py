"""`[parallel]`: ranks on axes, and what each axis needs of the others."""

import math
from dataclasses import dataclass
from typing import Literal

from traincope.engine.checks import positive, require
from traincope.plan.orders import SCHEDULES, Shape, find

AXES = ("pp", "dp_replicate", "fsdp", "dp", "cp", "tp")
"""Sizes in `[parallel]` whose product is the world size, outermost first: ranks that talk most are neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """`[parallel]`: how ranks divide the work; the product of the sizes is the world size."""

    pp: int = 1
    """Pipeline stages."""
    dp_replicate: int = 1
    """Replicas of the sharded model (HSDP); needs fsdp > 1 or cp > 1."""
    fsdp: int = 1
    """Ranks that share one copy of parameters, gradients and optimizer state (FSDP2)."""
    dp: int = 1
    """Replicas of the whole model (DDP), or of what tp leaves of it; a pipeline may be beside."""
    cp: int = 1
    """Ranks that share each sequence (context parallelism); parameters are sharded over fsdp x cp, with dp whole."""
    cp_method: Literal["ring", "ulysses"] = "ring"
    """How attention sees the whole sequence: keys and values go round a ring, or heads are exchanged for tokens."""
    tp: int = 1
    """Ranks that share each matrix product (tensor parallelism)."""
    sequence_parallel: bool = True
    """With tp, norms and the residual stream are cut along the sequence, instead of repeated on every tp rank."""
    ep: int = 1
    """Ranks that share the experts of each layer (expert parallelism), of the fsdp x cp ranks; no factor of its own."""
    ranks: int | None = None
    """World size this layout is meant for, checked against the product of the sizes; None: the product."""
    schedule: str = "1f1b"
    """Order of a pipeline's actions: gpipe, 1f1b, interleaved, zb-1p, zb-v, dualpipev or naive."""
    virtual: int | None = None
    """Stages that a rank of the pipeline holds; None: as few as the schedule can have (zb-v has always two)."""
    microbatches: int = 1
    """Pieces a pipeline cuts its batch into."""

    def __post_init__(self) -> None:
        for name in (*AXES, "ep", "microbatches"):
            positive(getattr(self, name), key=f"parallel.{name}")
        require(
            self.schedule in SCHEDULES,
            f"parallel.schedule = {self.schedule!r} is not known; choose one of {', '.join(SCHEDULES)}",
        )
        require(
            self.dp == 1 or (self.fsdp == 1 and self.dp_replicate == 1),
            f"parallel.dp = {self.dp} (DDP) cannot be combined with fsdp = {self.fsdp} and dp_replicate = "
            f"{self.dp_replicate}; for replicas of a sharded model set dp_replicate and fsdp, and dp = 1",
        )
        require(
            self.dp_replicate == 1 or self.fsdp * self.cp > 1,
            f"parallel.dp_replicate = {self.dp_replicate} needs fsdp > 1 or cp > 1; for replicas that are not sharded "
            "set dp",
        )
        require(
            self.dp == 1 or self.ep == 1,
            f"parallel.ep = {self.ep} spreads experts over ranks that share parameters, and with dp = {self.dp} (DDP) "
            "each has all of them; set fsdp or cp instead, and dp = 1",
        )
        require(
            self.shards % self.ep == 0,
            f"parallel.ep = {self.ep} does not divide fsdp x cp = {self.shards}, the ranks that experts are spread "
            "over; change one of them",
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
            positive(self.virtual, key="parallel.virtual")
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
            f"parallel.schedule = {self.schedule!r} splits backward, which DDP (dp = {self.dp}) does not see; "
            "set fsdp or dp_replicate instead, or another schedule",
        )

    @property
    def order_name(self) -> str:
        """The schedule's name in `plan.orders`: 1F1B of several stages a rank is the interleaved one."""
        return find(self.schedule, chunks=self.virtual)[0]

    @property
    def pipeline(self) -> Shape:
        """One rank with one stage where there is no pipeline."""
        chunks = find(self.schedule, chunks=self.virtual)[1] if self.pp > 1 else 1
        return Shape(ranks=self.pp, microbatches=self.microbatches, chunks=chunks)

    @property
    def shards(self) -> int:
        """Ranks that FSDP cuts parameters over; 1 where it does not."""
        return self.fsdp * self.cp if self.dp == 1 else 1

    @property
    def replicas(self) -> int:
        """Ranks that see different sequences: the number of slices of a global batch."""
        return self.dp_replicate * self.fsdp * self.dp

    @property
    def world_size(self) -> int:
        return math.prod(getattr(self, axis) for axis in AXES)

    def check_world_size(self, ranks: int) -> None:
        """Raise ConfigError unless this layout fills exactly `ranks` ranks."""
        product = " x ".join(f"{axis} {size}" for axis in AXES if (size := getattr(self, axis)) > 1) or "no axis"
        require(
            self.world_size == ranks,
            f"{product} = {self.world_size} ranks, but there are {ranks}; "
            "change a size in [parallel] or the number of ranks",
        )
