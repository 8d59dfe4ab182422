"""Memory of each rank of a pipeline: its share of the model, and the activations of its forwards."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from traincope.plan.layout.activations import ActivationPolicy, block_bytes, logits_bytes, scores_bytes, stage_bytes
from traincope.plan.layout.layout import Layout, Place
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import DTYPES, Precision, States, model_states
from traincope.plan.model.transformer import Transformer
from traincope.plan.pipeline.actions import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Order
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders
from traincope.plan.pipeline.stage_layers import stage_layers

NOTHING: Mapping[int, int] = MappingProxyType({})

Moment = tuple[tuple[int, int, int], ...]
"""What a rank holds at one time: (stage, microbatches, microbatches whose inputs of W it computed again)."""

LEFT_OUT = "other temporary buffers, the communication library, fragmentation"
"""Memory that the estimate excludes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of one rank of the pipeline. Its peers on the other axes hold as much."""

    rank: int
    layers: int
    """Blocks of its stages."""
    parameters: int
    """Number of parameters before ZeRO shards them."""
    states: States
    activations: int
    """Bytes while the most microbatches are in flight."""
    temporary: int = 0
    """Bytes of weights that ZeRO-3 gathers, of whole gradients before ZeRO-2 and 3 reduce them, of the activations of a
    block that is computed again, of unfused attention's buffers, and of the workspaces of matrix products."""
    in_flight: int
    """Most microbatches that its stages hold at once; each stage of a microbatch counts."""
    host: int = 0
    """Bytes in the CPU's memory."""
    nvme: int = 0
    """Bytes on local disks."""

    @property
    def total(self) -> int:
        return self.states.total + self.activations + self.temporary


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Number of parameters of a rank before ZeRO."""

    common: int
    """Parameters whose gradients are summed over all data ranks."""
    experts: int
    """Parameters whose gradients are summed over the ranks with the same experts."""


def memory(
    shape: Transformer,
    *,
    layout: Layout,
    precision: Precision,
    policy: ActivationPolicy,
    workspace_bytes: int = 0,
    known: tuple[RankMemory, ...] | None = None,
) -> tuple[RankMemory, ...]:
    """Memory of each rank of the pipeline. Raises UsageError if the model does not divide over the layout.

    `workspace_bytes`: bytes that the library of matrix products keeps on each rank. `known`: the memory of a layout
    that differs in its microbatches or its policy only, and so has the same states.
    """
    if known is None:
        layout.check(shape)
    kept = whole = _stage_bytes(shape, layout=layout, policy=policy)
    if policy.recompute is not Recompute.NONE:
        whole = _stage_bytes(shape, layout=layout, policy=policy.with_recompute(Recompute.NONE))
    # torch's first stage has nothing to compute in I, and computes again in W.
    again = {stage: whole[stage] - kept[stage] for stage in kept if stage > 0}
    schedule, pipeline = layout.order_name, layout.pipeline
    settled = _settled(schedule, pipeline)
    in_flight, alike = _in_flight_of_ranks(schedule, settled), _alike_ranks(shape, schedule, pipeline)
    ranks: list[RankMemory] = []
    for rank, moments in _moments_of_ranks(schedule, settled).items():
        first = alike[rank]
        if first < rank:
            like, temporary = ranks[first], ranks[first].temporary
        else:
            like = _parts(shape, layout=layout, precision=precision, rank=rank) if known is None else known[rank]
            temporary = workspace_bytes
            temporary += _temporary(shape, layout=layout, precision=precision, policy=policy, rank=rank)
        ranks.append(
            RankMemory(
                rank=rank,
                layers=like.layers,
                parameters=like.parameters,
                states=like.states,
                host=like.host,
                nvme=like.nvme,
                activations=_largest(moments, kept, again),
                temporary=temporary,
                in_flight=in_flight[rank],
            )
        )
    return tuple(ranks)


def _parts(shape: Transformer, *, layout: Layout, precision: Precision, rank: int) -> RankMemory:
    """What a rank holds of the model, without activations."""
    held = elements(shape, layout=layout, rank=rank)
    away = layout.updates_on_cpu
    return RankMemory(
        rank=rank,
        layers=held_blocks(shape, layout=layout, rank=rank)[0],
        parameters=held.common + held.experts,
        states=states(held, layout=layout, precision=precision),
        host=off_device(held, layout=layout, precision=precision, place=Place.CPU) if away else 0,
        nvme=off_device(held, layout=layout, precision=precision, place=Place.NVME) if away else 0,
        activations=0,
        in_flight=0,
    )


@lru_cache(maxsize=4096)
def _alike_ranks(shape: Transformer, schedule: str, pipeline: Shape) -> tuple[int, ...]:
    """Rank -> the first rank with as many blocks and the same ends. Its parameters are as many."""
    blocks, last = _blocks_of_ranks(shape, schedule, pipeline), pipeline.stages - 1
    stages = [SCHEDULES[schedule].placement(rank, pipeline) for rank in range(pipeline.ranks)]
    kinds = [(held, 0 in on, last in on) for held, on in zip(blocks, stages, strict=True)]
    return tuple(kinds.index(kind) for kind in kinds)


def _stage_bytes(shape: Transformer, *, layout: Layout, policy: ActivationPolicy) -> dict[int, int]:
    """Stage -> bytes of one microbatch. Stages with equal blocks and ends are computed once."""
    last = layout.pipeline.stages - 1
    kinds: dict[tuple[int, int, bool, bool], int] = {}
    held = {}
    for stage, blocks in enumerate(layout.blocks(shape)):
        kind = len(blocks), shape.num_routed(blocks), stage == 0, stage == last
        if kind not in kinds:
            kinds[kind] = stage_bytes(shape, layout=layout, policy=policy, stage=stage)
        held[stage] = kinds[kind]
    return held


def _temporary(shape: Transformer, *, layout: Layout, precision: Precision, policy: ActivationPolicy, rank: int) -> int:
    """Largest bytes of a rank that are neither states nor kept for backward.

    FSDP gathers a block while it computes another, and keeps the ends gathered. A block's gradients are whole, and its
    activations are computed again, once the logits are gone.
    """
    blocks, routed = held_blocks(shape, layout=layout, rank=rank)
    of_block = max(
        _split(shape, shape.block_weights, blocks=1, layout=layout) if blocks > routed else 0,
        _split(shape, shape.unrouted_weights, blocks=1, layout=layout) + shape.routed_weights // (layout.tp * layout.ep)
        if routed
        else 0,
    )
    ends = embeddings(shape, layout=layout, rank=rank) * shape.embedding_weights // layout.tp
    shared = layout.shards > layout.replicas
    gathered = DTYPES[precision.weights] * (2 * of_block + ends) if layout.zero == 3 and shared else 0
    whole = DTYPES[precision.gradients] * max(of_block, ends) if layout.zero >= 2 and shared else 0
    again = _again_bytes(shape, layout=layout, policy=policy, blocks=blocks, routed=routed)
    has_logits = layout.pipeline.stages - 1 in layout.stages(rank)
    gone = logits_bytes(shape, layout=layout, policy=policy) if has_logits else 0
    scores = scores_bytes(shape, layout=layout, policy=policy)
    return gathered + scores + max(whole + again - gone, 0)


def _again_bytes(shape: Transformer, *, layout: Layout, policy: ActivationPolicy, blocks: int, routed: int) -> int:
    """Bytes that recomputation of one block adds. A split backward holds them for whole stages (`again`)."""
    if policy.recompute is Recompute.NONE or SCHEDULES[layout.order_name].splits_backward:
        return 0
    kinds = [is_routed for is_routed, number in ((False, blocks - routed), (True, routed)) if number]
    whole = policy.with_recompute(Recompute.NONE)
    added = (
        block_bytes(shape, layout=layout, policy=whole, routed=each)
        - block_bytes(shape, layout=layout, policy=policy, routed=each)
        for each in kinds
    )
    return max((0, *added))


def states(held: Elements, *, layout: Layout, precision: Precision) -> States:
    """Bytes of weights, gradients and optimizer state on a rank's device, with the copy of ZeRO++'s hpZ."""
    shards = shares(held, layout=layout, precision=precision)
    on_device = layout.parameters_place is Place.DEVICE
    copy = 0 if layout.node_ranks is None else -(-held.common * DTYPES[precision.weights] // layout.node_ranks)
    return States(
        weights=(shards.weights if on_device else 0) + copy,
        gradients=shards.gradients if on_device else 0,
        optimizer=0 if layout.updates_on_cpu else shards.optimizer,
    )


def updated_parameters(held: Elements, *, layout: Layout) -> int:
    """Number of parameters that a rank's optimizer updates."""
    common, experts = (
        number // layout.replicas if layout.zero else 1 for number in (layout.shards, layout.expert_shards)
    )
    return -(-held.common // common) + -(-held.experts // experts)


def off_device(held: Elements, *, layout: Layout, precision: Precision, place: Place) -> int:
    """Bytes of a rank in the CPU's memory or on local disks. Gradients pass through the CPU's memory to the update."""
    shards = shares(held, layout=layout, precision=precision)
    parts = [shards.optimizer] if layout.state_place is place else []
    parts += [shards.weights] if layout.parameters_place is place else []
    parts += [shards.gradients] if layout.updates_on_cpu and place is Place.CPU else []
    return sum(parts)


def shares(held: Elements, *, layout: Layout, precision: Precision) -> States:
    """Bytes of a rank's shares of weights, gradients and optimizer state, wherever they lie."""
    common, experts = (
        model_states(number, precision=precision, zero=layout.zero, shards=shards // layout.replicas)
        for number, shards in ((held.common, layout.shards), (held.experts, layout.expert_shards))
    )
    return common + experts


def elements(shape: Transformer, *, layout: Layout, rank: int) -> Elements:
    """Number of parameters on a rank of the pipeline.

    A last stage without an output matrix of its own has a copy of the embedding. tp splits all but learned positions
    and what makes a latent attention's narrow vectors; ep also splits routed experts.
    """
    blocks, routed = held_blocks(shape, layout=layout, rank=rank)
    common = (blocks - routed) * shape.block_weights + routed * shape.unrouted_weights
    common += embeddings(shape, layout=layout, rank=rank) * shape.embedding_weights
    positions = shape.position_weights if 0 in layout.stages(rank) else 0
    return Elements(
        common=_split(shape, common, blocks=blocks, layout=layout) + positions,
        experts=routed * shape.routed_weights // (layout.tp * layout.ep),
    )


def _split(shape: Transformer, weights: int, *, blocks: int, layout: Layout) -> int:
    """Elements of these weights on a rank of tp, which has some of `blocks` blocks whole."""
    whole = blocks * shape.whole_weights
    return whole + (weights - whole) // layout.tp


def held_blocks(shape: Transformer, *, layout: Layout, rank: int) -> tuple[int, int]:
    """Blocks on a rank of the pipeline: (all, those with experts)."""
    return _blocks_of_ranks(shape, layout.order_name, layout.pipeline)[rank]


@lru_cache(maxsize=4096)
def _blocks_of_ranks(shape: Transformer, schedule: str, pipeline: Shape) -> tuple[tuple[int, int], ...]:
    split = stage_layers(shape.layers, schedule=schedule, shape=pipeline)
    ranks = (
        [split[stage] for stage in SCHEDULES[schedule].placement(rank, pipeline)] for rank in range(pipeline.ranks)
    )
    return tuple((sum(map(len, blocks)), sum(map(shape.num_routed, blocks))) for blocks in ranks)


def embeddings(shape: Transformer, *, layout: Layout, rank: int) -> int:
    """Number of matrices of the embedding's size on a rank of the pipeline."""
    stages = layout.stages(rank)
    first, last = 0 in stages, layout.pipeline.stages - 1 in stages
    return first + last - (first and last and not shape.untied)


def max_held(order: Order, held: Mapping[int, int], *, again: Mapping[int, int] = NOTHING) -> int:
    """Largest sum that a rank holds at once, if a microbatch on a stage holds `held[stage]`.

    A microbatch is held from its forward to the end of its backward. If backward is split, it is held to the end of W,
    which still needs the inputs of the products. With recomputation I computes `again[stage]` more, which W needs too.
    """
    return _largest(_moments(order), held, again)


def _largest(moments: frozenset[Moment], held: Mapping[int, int], again: Mapping[int, int]) -> int:
    sums = (sum(kept * held[stage] + more * again.get(stage, 0) for stage, kept, more in moment) for moment in moments)
    return max((0, *sums))


def _moments(order: Order) -> frozenset[Moment]:
    """All different moments of a rank at which it begins to hold something."""
    kept, more = dict.fromkeys((action.stage for action in order), 0), dict.fromkeys((a.stage for a in order), 0)
    moments = set()
    for kind, stage, _ in order:
        if kind == FORWARD:
            kept[stage] += 1
        elif kind == BACKWARD_INPUT:
            more[stage] += 1
        else:
            kept[stage] -= 1
            more[stage] -= kind == BACKWARD_WEIGHT
            continue
        moments.add(tuple((stage, count, more[stage]) for stage, count in kept.items()))
    return frozenset(moments)


def _settled(schedule: str, shape: Shape) -> Shape:
    """The shape with the fewest microbatches that has all moments of `shape`.

    After some rounds of microbatches a schedule repeats itself, and more microbatches add no moment.
    """
    rounds = SCHEDULES[schedule].settled_rounds
    return shape if rounds is None else replace(shape, microbatches=min(shape.microbatches, rounds * shape.ranks))


@lru_cache(maxsize=4096)
def _in_flight_of_ranks(schedule: str, shape: Shape) -> tuple[int, ...]:
    """Rank -> most microbatches that its stages hold at once. `shape`: a settled one."""
    once = dict.fromkeys(range(shape.stages), 1)
    return tuple(_largest(moments, once, NOTHING) for moments in _moments_of_ranks(schedule, shape).values())


@lru_cache(maxsize=4096)
def _moments_of_ranks(schedule: str, shape: Shape) -> Mapping[int, frozenset[Moment]]:
    """Rank -> its moments. Cached, because they don't depend on the model. `shape`: a settled one."""
    return {rank: _fullest(_moments(order)) for rank, order in orders(schedule, shape).items()}


def _fullest(moments: frozenset[Moment]) -> frozenset[Moment]:
    """Moments at which no other moment holds as much of every stage, or more."""
    listed = sorted(moments, key=lambda moment: -sum(kept + more for _, kept, more in moment))
    kept: list[Moment] = []
    for moment in listed:
        if not any(_covers(other, moment) for other in kept):
            kept.append(moment)
    return frozenset(kept)


def _covers(other: Moment, moment: Moment) -> bool:
    return all(a[1] >= b[1] and a[2] >= b[2] for a, b in zip(other, moment, strict=True))
