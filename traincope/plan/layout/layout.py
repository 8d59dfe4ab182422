"""Layout of a training over ranks, and the blocks of a model on each stage."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from traincope.errors import UsageError
from traincope.plan.model.transformer import Transformer
from traincope.plan.pipeline.orders import SCHEDULES, Shape, resolve_schedule
from traincope.plan.pipeline.stage_layers import is_possible, stage_layers

RING, ULYSSES = "ring", "ulysses"

ZERO_STAGES = (0, 1, 2, 3)
"""State that data ranks share: none, optimizer states, also gradients, also weights (Rajbhandari et al. 2019, section
5)."""


class Place(StrEnum):
    """Memory in which a rank keeps its shard of something."""

    DEVICE = "device"
    CPU = "cpu"
    NVME = "nvme"


class Overlap(StrEnum):
    """Collectives that run next to kernels."""

    NONE = "none"
    """None of ZeRO's stages 0 and 1: Megatron-LM without --overlap-grad-reduce."""
    DATA = "data"
    """Collectives that share gradients and weights, as those of DDP and FSDP."""
    GRADIENTS = "gradients"
    """Also those of tp that only a block's gradients of inputs or of weights need, next to the product of the other one
    (Megatron-LM's LinearWithGradAccumulationAndAsyncCommunication)."""
    ALL = "all"
    """Also the others of tp, in pieces next to their products, and messages of an interleaved pipeline, next to the
    other stages of the rank (Megatron-LM's --tp-comm-overlap, torchtitan's async tp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the mesh's axes and settings of each axis. Raises UsageError for an impossible layout.

    There are dp x cp x tp x pp ranks. Expert parallelism takes its ranks out of dp x cp. Gradients are summed, and
    ZeRO's shards lie, over dp x cp; those of experts over dp x cp / ep.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    """ZeRO stage: 3 for FSDP2, 0 for DDP."""
    replicas: int = 1
    """Groups of data ranks that each have all shards (HSDP)."""
    node_ranks: int | None = None
    """Neighbouring ranks that share a copy of ZeRO-3's weights from forward to backward, so that backward gathers among
    them: ZeRO++'s hpZ (Wang et al. 2023, arXiv:2306.10209). None: no such copy."""
    quantize_weights: bool = False
    """ZeRO++'s qwZ: weights are gathered as int8, except from copies of hpZ."""
    quantize_gradients: bool = False
    """ZeRO++'s qgZ: gradients are exchanged as int8."""
    optimizer_place: Place = Place.DEVICE
    """Place of the optimizer's state. Elsewhere the CPU updates the weights (ZeRO-Offload, Ren et al. 2021,
    arXiv:2101.06840; ZeRO-Infinity, Rajbhandari et al. 2021, arXiv:2104.07857)."""
    parameters_place: Place = Place.DEVICE
    """Place of ZeRO-3's shards of weights. Elsewhere gradients lie in the CPU's memory, and the optimizer's state in
    the CPU's memory or on `optimizer_place`."""
    sequence_parallel: bool = True
    """Split activations outside the matrix products along the sequence over tp."""
    overlap: Overlap = Overlap.GRADIENTS
    scatter_gather: bool = False
    """Without sequence parallelism: each rank of tp sends its part of a stage's output, and the receivers gather it
    (Narayanan et al. 2021, arXiv:2104.04473, section 4.1)."""
    fused_sums: bool = True
    """Below ZeRO's stage 2, products add gradients to the sum of the microbatches before (Megatron-LM's gradient
    accumulation fusion)."""
    cast_sums: bool = False
    """Below ZeRO's stage 2, each microbatch's gradients are cast and added to a sum in fp32, and the whole sums are
    reduced although the state is sharded (DeepSpeed's BF16_Optimizer: update_hp_grads, get_grads_for_reduction)."""
    cp_method: str = RING
    schedule: str = "1f1b"
    virtual: int | None = None
    """Stages of a pipeline rank. None: the fewest that the schedule allows."""
    microbatches: int = 1
    """Microbatches of one data rank in one step."""
    micro_batch: int = 1
    """Sequences of one microbatch."""

    def __post_init__(self) -> None:
        for name in ("dp", "replicas", "tp", "pp", "cp", "ep", "microbatches", "micro_batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.dp % self.replicas:
            raise UsageError(f"replicas is {self.replicas}; it must divide dp = {self.dp}")
        if self.zero not in ZERO_STAGES:
            raise UsageError(f"zero is {self.zero}; it must be one of 0, 1, 2, 3")
        if self.cp_method not in (RING, ULYSSES):
            raise UsageError(f"cp_method is {self.cp_method!r}; it must be ring or ulysses")
        if self.replicas > 1 and self.shards // self.replicas % self.ep:
            raise UsageError(
                f"ep is {self.ep}; it must divide dp x cp / replicas = {self.shards // self.replicas}, the ranks of a "
                "replica, from which it takes its ranks"
            )
        if self.shards % self.ep:
            raise UsageError(f"ep is {self.ep}; it must divide dp x cp = {self.shards}, from which it takes its ranks")
        self._check_sharing()
        self._check_schedule()

    def _check_sharing(self) -> None:
        shards = self.shards // self.replicas
        if self.cast_sums and self.zero > 1:
            raise UsageError(f"cast_sums needs ZeRO stage 0 or 1, not {self.zero}")
        if (self.quantize_weights or self.quantize_gradients) and not self.zero:
            raise UsageError("quantized weights and gradients need ZeRO stage 1, 2 or 3")
        if self.node_ranks is not None:
            if self.zero < 3 or self.ep > 1:
                raise UsageError("node_ranks needs ZeRO stage 3 without ep")
            if not 0 < self.node_ranks <= shards or shards % self.node_ranks:
                raise UsageError(
                    f"node_ranks is {self.node_ranks}; it must divide the {shards} ranks that share weights"
                )
        if self.parameters_place is not Place.DEVICE and self.zero < 3:
            raise UsageError("weights lie outside the devices only with ZeRO stage 3")

    def _check_schedule(self) -> None:
        resolve_schedule(self.schedule)
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
        """Ranks with the same part of the model before ZeRO. They sum its gradients."""
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
    def stream_ranks(self) -> int:
        """Ranks that share activations outside the matrix products: norms' inputs and the residual stream."""
        return self.tp if self.sequence_parallel else 1

    @property
    def updates_on_cpu(self) -> bool:
        """The optimizer runs on the CPU."""
        return self.optimizer_place is not Place.DEVICE or self.parameters_place is not Place.DEVICE

    @property
    def state_place(self) -> Place:
        """Place of the optimizer's state."""
        if self.optimizer_place is Place.DEVICE and self.parameters_place is not Place.DEVICE:
            return Place.CPU
        return self.optimizer_place

    @property
    def order_name(self) -> str:
        """Name of the schedule.

        A rank without a pipeline takes one microbatch after the other, as in 1F1B.
        """
        return _pipeline(self.schedule, self.virtual, self.pp, self.microbatches)[0]

    @property
    def pipeline(self) -> Shape:
        return _pipeline(self.schedule, self.virtual, self.pp, self.microbatches)[1]

    def stages(self, rank: int) -> tuple[int, ...]:
        """Stages of a rank of the pipeline."""
        return _placement(self.order_name, self.pipeline)[rank]

    def blocks(self, shape: Transformer) -> tuple[range, ...]:
        """Blocks of every stage."""
        return stage_layers(shape.layers, schedule=self.order_name, shape=self.pipeline)

    def check(self, shape: Transformer) -> None:
        """Raise UsageError if the model does not divide over the layout."""
        for axis, what, number in _cuts(self, shape):
            if number % getattr(self, axis):
                raise UsageError(f"{axis} is {getattr(self, axis)}; it must divide the {number} {what}")
        if not is_possible(self.blocks(shape)):
            raise UsageError(f"{shape.layers} layers are too few for {self.pipeline.stages} stages; use a smaller pp")
        if shape.experts is None and self.ep > 1:
            raise UsageError(f"ep = {self.ep} needs experts, and the model has none; use ep = 1")
        if shape.experts is not None and self.tp > 1 and not self.sequence_parallel:
            raise UsageError("experts with tp need sequence parallelism; without it tokens would be routed tp times")


@lru_cache(maxsize=4096)
def _pipeline(schedule: str, virtual: int | None, pp: int, microbatches: int) -> tuple[str, Shape]:
    """Name of the schedule, and the pipeline's size. Cached, because every formula asks for them."""
    if pp == 1:
        return "1f1b", Shape(ranks=1, microbatches=microbatches)
    name, chunks = resolve_schedule(schedule, chunks=virtual)
    return name, Shape(ranks=pp, microbatches=microbatches, chunks=chunks)


@lru_cache(maxsize=4096)
def _placement(schedule: str, pipeline: Shape) -> tuple[tuple[int, ...], ...]:
    """Stages of every rank of the pipeline."""
    return tuple(SCHEDULES[schedule].placement(rank, pipeline) for rank in range(pipeline.ranks))


def _cuts(layout: Layout, shape: Transformer) -> Iterator[tuple[str, str, int]]:
    """Yield (axis, what it splits, how many there are)."""
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
