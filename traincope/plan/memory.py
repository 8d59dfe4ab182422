"""What each rank of a pipeline must hold: its share of the model, and what its forwards keep."""

from dataclasses import dataclass

from traincope.plan.activations import Keeping, stage_bytes
from traincope.plan.in_flight import most_held
from traincope.plan.layout import Layout
from traincope.plan.orders import orders
from traincope.plan.precision import Precision, States, model_states
from traincope.plan.transformer import Transformer

LEFT_OUT = (
    "temporary buffers, weights that ZeRO-3 gathers, a block's activations while it is recomputed, "
    "the communication library, fragmentation"
)
"""What comes on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Of one rank of the pipeline; its peers on the other axes hold as much."""

    rank: int
    parameters: int
    """Elements before ZeRO shares them."""
    states: States
    activations: int
    """Bytes when the most microbatches are in flight."""
    in_flight: int
    """The most microbatches that its stages hold at once, one on each stage counted."""

    @property
    def total(self) -> int:
        return self.states.total + self.activations


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Parameters of a rank before ZeRO."""

    common: int
    """Summed over all data ranks."""
    experts: int
    """Summed over those with the same experts."""


def memory(shape: Transformer, *, layout: Layout, precision: Precision, keeping: Keeping) -> tuple[RankMemory, ...]:
    """One for each rank of the pipeline; raises UsageError where the model does not divide over the layout."""
    layout.check(shape)
    kept = {
        stage: stage_bytes(shape, layout=layout, keeping=keeping, stage=stage)
        for stage in range(layout.pipeline.stages)
    }
    ranks = []
    for rank, order in orders(layout.order_name, layout.pipeline).items():
        held = elements(shape, layout=layout, rank=rank)
        ranks.append(
            RankMemory(
                rank=rank,
                parameters=held.common + held.experts,
                states=states(held, layout=layout, precision=precision),
                activations=most_held(order, kept),
                in_flight=most_held(order, dict.fromkeys(kept, 1)),
            )
        )
    return tuple(ranks)


def states(held: Elements, *, layout: Layout, precision: Precision) -> States:
    """Bytes of weights, gradients and optimizer on a rank."""
    common, experts = (
        model_states(number, precision=precision, zero=layout.zero, shards=shards)
        for number, shards in ((held.common, layout.shards), (held.experts, layout.expert_shards))
    )
    return common + experts


def elements(shape: Transformer, *, layout: Layout, rank: int) -> Elements:
    """Of the matrices on a rank of the pipeline; a last stage without its own output matrix has a copy of the first's.

    Blocks are cut by tp, routed experts by ep too.
    """
    blocks, routed = held_blocks(shape, layout=layout, rank=rank)
    common = (blocks - routed) * shape.block_weights + routed * shape.unrouted_weights
    common += embeddings(shape, layout=layout, rank=rank) * shape.embedding_weights
    return Elements(common=common // layout.tp, experts=routed * shape.routed_weights // (layout.tp * layout.ep))


def held_blocks(shape: Transformer, *, layout: Layout, rank: int) -> tuple[int, int]:
    """On a rank of the pipeline: (all, those with experts)."""
    blocks = [layout.blocks(stage, shape) for stage in layout.stages(rank)]
    return sum(map(len, blocks)), sum(map(shape.num_routed, blocks))


def embeddings(shape: Transformer, *, layout: Layout, rank: int) -> int:
    """Matrices as large as the embedding that a rank of the pipeline has."""
    stages = layout.stages(rank)
    first, last = 0 in stages, layout.pipeline.stages - 1 in stages
    return first + last - (first and last and not shape.untied)
