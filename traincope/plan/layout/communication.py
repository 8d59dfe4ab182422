"""Communication of a rank in one step, axis by axis, by formula.

Bytes are counted as nccl-tests and traincope's recorder count them: the whole output of a gather, the whole input of a
reduction, the bytes that one rank sends in an exchange or message. A rank puts that times the ring's factor on the wire
(`layout.bus`). Excluded: the few numbers of the loss and the gradient norm, and norms' gradients over tp.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from traincope.plan.layout.bus import bus_factor
from traincope.plan.layout.layout import ULYSSES, Layout, Place
from traincope.plan.layout.memory import elements, held_blocks, updated_parameters
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import DTYPES, Precision
from traincope.plan.model.transformer import Transformer

INPUTS_AGAIN = "inputs again"
"""Inputs of products that are gathered again for the gradients of weights."""
NODE_WEIGHTS = "weights of a node"
"""Weights that ranks of a node gather from the copy of ZeRO++'s hpZ."""
HOST = "host"
"""Axis of copies between a device and its CPU."""
QUANTIZED_BYTES = 1 + 4 / 256
"""Bytes of a number that ZeRO++ quantizes: an int8, and a scale in fp32 for each 256 (DeepSpeed's and the engine's)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One kind of collective on one axis, in one step of one rank."""

    axis: str
    operation: str
    what: str
    """Content in one word. Activations include their gradients."""
    ranks: int
    """Size of the group."""
    count: int
    num_bytes: int
    """Bytes of all `count` collectives together."""

    @property
    def wire_bytes(self) -> float:
        """Bytes that the rank sends, by a ring if the algorithm can be chosen."""
        return self.num_bytes * bus_factor(self.operation, self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Model, layout and precision that determine the volumes."""

    shape: Transformer
    layout: Layout
    precision: Precision
    recompute: Recompute = Recompute.NONE

    def __post_init__(self) -> None:
        self.layout.check(self.shape)

    @property
    def stream(self) -> int:
        """Bytes of a microbatch's residual stream, b s h, of a rank's tokens before tp splits them."""
        return self.tokens * self.shape.hidden * self.element_bytes

    @property
    def attention_stream(self) -> int:
        """Bytes of what enters one block's attention, in place of the residual stream."""
        latent, width = self.shape.latent, self.shape.hidden
        if latent is not None:
            width = (latent.q_rank or width) + latent.kv_rank + latent.rope
        return self.tokens * width * self.element_bytes

    @property
    def tokens(self) -> int:
        return self.layout.micro_batch * self.shape.sequence // self.layout.cp

    @property
    def element_bytes(self) -> int:
        return DTYPES[self.precision.activations]

    @property
    def sum_accesses(self) -> int:
        """Bytes per parameter that add a microbatch's gradient to the sum of those before."""
        return DTYPES[self.precision.activations] + 2 * DTYPES[self.precision.gradients]

    @property
    def reruns_blocks(self) -> bool:
        """Forwards of blocks run twice, collectives included."""
        return self.recompute is Recompute.FULL

    @property
    def reruns_attention(self) -> bool:
        """Attention runs twice, also over sequences that context parallelism splits."""
        return self.recompute is not Recompute.NONE

    def blocks(self, rank: int) -> tuple[int, int]:
        """Blocks on a rank of the pipeline: (all, those with experts)."""
        return held_blocks(self.shape, layout=self.layout, rank=rank)


def volumes(traffic: Traffic, *, rank: int = 0) -> tuple[Volume, ...]:
    """Communication of a rank of the pipeline. Axes of one rank send nothing.

    Raises UsageError if the model does not divide over the layout.
    """
    parts = (_data, _tensor, _context, _expert, _pipeline)
    candidates = (volume for part in parts for volume in part(traffic, rank))
    return tuple(volume for volume in candidates if volume.ranks > 1 and volume.count)


def _data(traffic: Traffic, rank: int) -> Iterator[Volume]:
    layout = traffic.layout
    held = elements(traffic.shape, layout=layout, rank=rank)
    yield from _sharing(traffic, "", held.common, layout.shards)
    yield from _sharing(traffic, "expert", held.experts, layout.expert_shards)


def _sharing(traffic: Traffic, prefix: str, parameters: int, ranks: int) -> Iterator[Volume]:
    """Communication of ZeRO: 2 Psi per step below stage 3, 3 Psi at stage 3.

    Rajbhandari et al. 2019, ZeRO, arXiv:1910.02054, section 7, gives this for one microbatch. From stage 2 on no rank
    has room for whole gradients, so each microbatch's gradients are reduced. At stage 3 weights are gathered for each
    forward and backward. If FSDP2 keeps gathered weights and whole gradients until a step ends, as pipelines do, it
    sends and holds what stage 1 does.

    With replicas of the shards (HSDP), gathers and reductions stay within a replica. Each rank sums its shard of the
    gradients over the replicas, once per step (Zhao et al. 2023, arXiv:2304.11277, section 3.2.2). `ranks`: those of
    all replicas.
    """
    if not parameters:
        return
    zero, microbatches, replicas = traffic.layout.zero, traffic.layout.microbatches, traffic.layout.replicas
    shards = ranks // replicas if zero else ranks
    layout = traffic.layout
    gradients, weights = (
        parameters * DTYPES[name] for name in (traffic.precision.gradients, traffic.precision.weights)
    )
    quantized = round(parameters * QUANTIZED_BYTES)
    exchanged = quantized if layout.quantize_gradients else gradients
    gathered = quantized if layout.quantize_weights else weights
    reductions = microbatches if zero >= 2 else 1
    scatters = zero and not layout.cast_sums
    yield Volume(
        axis="dp",
        operation="all_to_all" if layout.quantize_gradients else "reduce_scatter" if scatters else "all_reduce",
        what=f"{prefix} gradients".strip(),
        ranks=shards,
        count=reductions,
        num_bytes=reductions * exchanged,
    )
    gathers = 2 * microbatches if zero == 3 else 1 if zero else 0
    if layout.node_ranks is not None:
        gathers = microbatches
        yield Volume(
            axis="dp",
            operation="all_gather",
            what=NODE_WEIGHTS,
            ranks=layout.node_ranks,
            count=microbatches,
            num_bytes=microbatches * weights,
        )
    yield Volume(
        axis="dp",
        operation="all_gather",
        what=f"{prefix} weights".strip(),
        ranks=shards,
        count=gathers,
        num_bytes=gathers * gathered,
    )
    if zero:
        yield Volume(
            axis="dp",
            operation="all_reduce",
            what=f"{prefix} gradients of a shard".strip(),
            ranks=replicas,
            count=1,
            num_bytes=-(-gradients // shards),
        )


def host_copies(traffic: Traffic, *, rank: int = 0) -> tuple[Volume, ...]:
    """Copies between a rank's device and its CPU in one step: shards of weights before each gather, of gradients after
    each reduction, and for an update on the CPU the gradients there and the weights back.
    """
    layout = traffic.layout
    if not layout.updates_on_cpu:
        return ()
    held = elements(traffic.shape, layout=layout, rank=rank)
    parameters = updated_parameters(held, layout=layout)
    fetches = sends = 1
    if layout.parameters_place is not Place.DEVICE:
        fetches = layout.microbatches * (1 if layout.node_ranks is not None else 2)
        sends = layout.microbatches
    copies = (("weights", fetches, traffic.precision.weights), ("gradients", sends, traffic.precision.gradients))
    return tuple(
        Volume(
            axis=HOST,
            operation="copy",
            what=what,
            ranks=1,
            count=times,
            num_bytes=times * parameters * DTYPES[dtype],
        )
        for what, times, dtype in copies
    )


def _tensor(traffic: Traffic, rank: int) -> Iterator[Volume]:
    """Communication of tensor parallelism: all-reduces, or gathers and reductions along the sequence.

    Korthikanti et al. 2022, arXiv:2205.05198, section 4.2: forward and backward each have an all-reduce after the
    attention and one after the feed-forward. With sequence parallelism a gather and a reduction replace each. A forward
    that runs again needs nothing after its last product. With experts only the tokens that each expert takes are
    gathered and reduced (Megatron-Core's token dispatcher). Into a latent attention go its narrow vectors
    (megatron/core/transformer/multi_latent_attention.py). The weights that make them are whole on each rank, and see
    only its tokens, so their gradients are summed (megatron/core/distributed/finalize_model_grads.py).
    """
    reductions, gathers, regathers = _streams(traffic, rank)
    blocks = traffic.blocks(rank)[0]
    if not traffic.layout.sequence_parallel:
        yield _tensor_volume(traffic, "all_reduce", "activations", reductions, into_attention=blocks)
        return
    twice = 2 * blocks if traffic.reruns_blocks else blocks
    yield _tensor_volume(traffic, "all_gather", "activations", gathers, into_attention=twice)
    yield _tensor_volume(traffic, "reduce_scatter", "activations", reductions, into_attention=blocks)
    yield _tensor_volume(traffic, "all_gather", INPUTS_AGAIN, regathers, into_attention=blocks)
    yield Volume(
        axis="tp",
        operation="all_reduce",
        what="gradients of whole weights",
        ranks=traffic.layout.tp,
        count=1 if traffic.shape.whole_weights else 0,
        num_bytes=blocks * traffic.shape.whole_weights * DTYPES[traffic.precision.gradients],
    )


def _streams(traffic: Traffic, rank: int) -> tuple[int, int, int]:
    """Streams of one microbatch: (reduced, gathered, gathered again)."""
    blocks, routed = traffic.blocks(rank)
    experts = traffic.shape.experts
    feed_forwards = blocks - routed + (0 if experts is None else routed * (experts.top_k + (experts.shared > 0)))
    first, last = 0 in traffic.layout.stages(rank), traffic.layout.pipeline.stages - 1 in traffic.layout.stages(rank)
    once = blocks + feed_forwards
    reductions = 2 * once + first + last + (blocks if traffic.reruns_blocks else 0)
    gathers = 2 * once + first + last + (once if traffic.reruns_blocks else 0)
    return reductions, gathers, once + last


def _tensor_volume(traffic: Traffic, operation: str, what: str, streams: int, *, into_attention: int = 0) -> Volume:
    """`into_attention`: those of the streams that attention's inputs are, or their gradients."""
    microbatches = traffic.layout.microbatches
    whole = streams - into_attention
    return Volume(
        axis="tp",
        operation=operation,
        what=what,
        ranks=traffic.layout.tp,
        count=streams * microbatches,
        num_bytes=microbatches * (whole * traffic.stream + into_attention * traffic.attention_stream),
    )


def _context(traffic: Traffic, rank: int) -> Iterator[Volume]:
    blocks = traffic.blocks(rank)[0] * traffic.layout.microbatches
    yield _ulysses(traffic, blocks) if traffic.layout.cp_method == ULYSSES else _ring(traffic, blocks)


def _ring(traffic: Traffic, blocks: int) -> Volume:
    """Communication of ring attention.

    Keys and values make n - 1 hops in forward and again in backward. Their gradients, in fp32, make n hops to return to
    their owner. Liu et al. 2023, arXiv:2310.01889, section 3.
    """
    layout = traffic.layout
    numbers = traffic.tokens * (traffic.shape.key_width + traffic.shape.value_width) // layout.tp
    hops = (layout.cp - 1) * (3 if traffic.reruns_attention else 2)
    return Volume(
        axis="cp",
        operation="send",
        what="keys, values",
        ranks=layout.cp,
        count=blocks * (hops + layout.cp),
        num_bytes=blocks * numbers * (hops * traffic.element_bytes + layout.cp * DTYPES["fp32"]),
    )


def _ulysses(traffic: Traffic, blocks: int) -> Volume:
    """Communication of Ulysses: queries, keys and values for heads, the output back, and all of it in backward.

    Jacobs et al. 2023, arXiv:2309.14509, section 3.2: 4 N h / P for a block's forward if all heads have keys. If only
    attention runs again, it needs no exchange after it.
    """
    layout, shape = traffic.layout, traffic.shape
    qkv = traffic.tokens * (shape.query_width + shape.key_width + shape.value_width)
    output = traffic.tokens * shape.mixed_width
    qkv_exchanges, output_exchanges = 3 if traffic.reruns_attention else 2, 3 if traffic.reruns_blocks else 2
    return Volume(
        axis="cp",
        operation="all_to_all",
        what="heads",
        ranks=layout.cp,
        count=(qkv_exchanges + output_exchanges) * blocks,
        num_bytes=blocks * (qkv_exchanges * qkv + output_exchanges * output) // layout.tp * traffic.element_bytes,
    )


def _expert(traffic: Traffic, rank: int) -> Iterator[Volume]:
    """Communication of experts: each token to its top_k experts and back, and its gradients too.

    Lepikhin et al. 2020, arXiv:2006.16668. As in any exchange, a share goes to the rank's own experts and is not on the
    wire.
    """
    experts = traffic.shape.experts
    if experts is None:
        return
    passes = 3 if traffic.reruns_blocks else 2
    count = 2 * passes * traffic.blocks(rank)[1] * traffic.layout.microbatches
    yield Volume(
        axis="ep",
        operation="all_to_all",
        what="tokens",
        ranks=traffic.layout.ep,
        count=count,
        num_bytes=count * experts.top_k * traffic.stream // traffic.layout.stream_ranks,
    )


@lru_cache(maxsize=4)
def _ranks_of_stages(layout: Layout) -> Mapping[int, int]:
    """Stage -> rank of the pipeline. Cached, because each rank of a layout asks for it."""
    return {stage: rank for rank in range(layout.pp) for stage in layout.stages(rank)}


def _pipeline(traffic: Traffic, rank: int) -> Iterator[Volume]:
    """Communication of a pipeline: one stream per microbatch to the next stage, its gradient to the previous one.

    Narayanan et al. 2021, arXiv:2104.04473, section 4.1. With sequence parallelism, and with `scatter_gather`, each tp
    rank sends its part, otherwise the whole stream. If a tied embedding lies on the first and the last stage, its
    gradients are summed over both.
    """
    layout = traffic.layout
    rank_of = _ranks_of_stages(layout)
    hops = sum(rank_of.get(stage + step, rank) != rank for stage in layout.stages(rank) for step in (1, -1))
    pieces = layout.tp if layout.scatter_gather else layout.stream_ranks
    yield Volume(
        axis="pp",
        operation="send",
        what="activations",
        ranks=layout.pp,
        count=hops * layout.microbatches,
        num_bytes=hops * layout.microbatches * traffic.stream // pieces,
    )
    if pieces > layout.stream_ranks:
        # A rank receives as many streams as it sends.
        yield _tensor_volume(traffic, "all_gather", "received", hops)
    ends = {rank_of[0], rank_of[layout.pipeline.stages - 1]}
    if not traffic.shape.untied and len(ends) == 2 and rank in ends:
        gradients = traffic.shape.embedding_weights // layout.tp * DTYPES[traffic.precision.gradients]
        yield Volume(
            axis="pp",
            operation="all_reduce",
            what="embedding",
            ranks=2,
            count=1,
            num_bytes=gradients,
        )
