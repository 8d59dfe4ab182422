"""How a training is laid over ranks, and what of a model lies where."""

from collections.abc import Iterator
from dataclasses import dataclass

from traincope.errors import UsageError
from traincope.plan.orders import SCHEDULES, Shape, find
from traincope.plan.transformer import Transformer

RING, ULYSSES = "ring", "ulysses"

ZERO_STAGES = (0, 1, 2, 3)
"""Shared by data ranks: nothing, optimizer states, gradients too, weights too (Rajbhandari et al. 2019, section 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the mesh's axes and what goes over them; raises UsageError for what cannot be.

    Ranks are dp x cp x tp x pp; expert parallelism takes its ranks out of dp x cp. Gradients are summed,
    and ZeRO's shares lie, over dp x cp; those of experts over dp x cp / ep.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    """ZeRO's stage; FSDP2 is 3, DDP 0."""
    sequence_parallel: bool = True
    """With tp, what lies between the cut matrices is cut along the sequence."""
    cp_method: str = RING
    schedule: str = "1f1b"
    virtual: int | None = None
    """Stages of a pipeline rank; None: as few as the schedule can have."""
    microbatches: int = 1
    """Of one data rank in one step."""
    micro_batch: int = 1
    """Sequences of one microbatch."""

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep", "microbatches", "micro_batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.zero not in ZERO_STAGES:
            raise UsageError(f"zero = {self.zero} must be one of 0, 1, 2, 3")
        if self.cp_method not in (RING, ULYSSES):
            raise UsageError(f"cp_method = {self.cp_method!r} must be ring or ulysses")
        if self.shards % self.ep:
            raise UsageError(f"ep = {self.ep} must divide dp x cp = {self.shards}, out of which it takes its ranks")
        self._check_schedule()

    def _check_schedule(self) -> None:
        find(self.schedule)
        if self.pp == 1 and self.virtual not in (None, 1):
            raise UsageError(f"virtual = {self.virtual} needs pp > 1; without a pipeline a rank has all layers at once")
        refusal = SCHEDULES[self.order_name].refusal(self.pipeline)
        if refusal is not None:
            raise UsageError(f"{self.order_name} {refusal}")

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def shards(self) -> int:
        """Ranks with the same unshared part of the model: they sum its gradients."""
        return self.dp * self.cp

    @property
    def expert_shards(self) -> int:
        """Ranks with the same experts."""
        return self.shards // self.ep

    @property
    def batch(self) -> int:
        """Sequences of a step, over all ranks."""
        return self.dp * self.microbatches * self.micro_batch

    @property
    def between(self) -> int:
        """Ranks that share what lies between the cut matrices: norms' inputs, the residual stream."""
        return self.tp if self.sequence_parallel else 1

    @property
    def order_name(self) -> str:
        """Of the schedule that is meant; a rank without a pipeline takes one microbatch after the other, as in 1F1B."""
        return find(self.schedule, chunks=self.virtual)[0] if self.pp > 1 else "1f1b"

    @property
    def pipeline(self) -> Shape:
        chunks = find(self.schedule, chunks=self.virtual)[1] if self.pp > 1 else 1
        return Shape(ranks=self.pp, microbatches=self.microbatches, chunks=chunks)

    def stages(self, rank: int) -> tuple[int, ...]:
        """Of a rank of the pipeline."""
        return SCHEDULES[self.order_name].placement(rank, self.pipeline)

    def blocks(self, stage: int, shape: Transformer) -> range:
        """The blocks of a stage; where they do not divide, the first stages have one more."""
        each, more = divmod(shape.layers, self.pipeline.stages)
        first = stage * each + min(stage, more)
        return range(first, first + each + (stage < more))

    def check(self, shape: Transformer) -> None:
        """Raises UsageError where the model does not divide."""
        for axis, what, number in _cuts(self, shape):
            if number % getattr(self, axis):
                raise UsageError(f"{axis} = {getattr(self, axis)} must divide the {number} {what}")
        if shape.layers < self.pipeline.stages:
            raise UsageError(f"{shape.layers} layers are too few for {self.pipeline.stages} stages; use less pp")
        if shape.experts is None and self.ep > 1:
            raise UsageError(f"ep = {self.ep} needs experts; the model has none")
        if shape.experts is not None and self.tp > 1 and not self.sequence_parallel:
            raise UsageError("experts beside tp need sequence parallelism, or tokens would be routed tp times")


def _cuts(layout: Layout, shape: Transformer) -> Iterator[tuple[str, str, int]]:
    """(axis, what it cuts, how many there are)."""
    yield "tp", "heads", shape.heads
    yield "tp", "key and value heads", shape.kv_heads or shape.heads
    yield "tp", "inner channels of a feed-forward", shape.ffn_width if shape.experts is None else shape.experts.ffn
    yield "cp", "tokens of a sequence", shape.sequence
    if layout.sequence_parallel:
        yield "tp", "tokens that a cp rank has of a sequence", shape.sequence // layout.cp
    if layout.cp_method == ULYSSES:
        yield "cp", "key and value heads of a tp rank", (shape.kv_heads or shape.heads) // layout.tp
    if shape.experts is not None:
        yield "ep", "experts", shape.experts.count
