"""What a rank sends in one step, axis by axis, by formula.

Bytes are counted as nccl-tests do and as traincope's recorder sees them (of a gather the whole output,
of a reduction the whole input, of an exchange or a message what one rank sends); what a rank puts on
the wire is that times the ring's factor, `plan.bus`. Left out: the loss's and the gradient norm's few
numbers, norms' gradients over tp.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from traincope.plan.bus import bus_factor
from traincope.plan.flops import Recompute
from traincope.plan.layout import ULYSSES, Layout
from traincope.plan.memory import elements, held_blocks
from traincope.plan.precision import DTYPES, Precision
from traincope.plan.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One kind of collective on one axis, in one step of one rank."""

    axis: str
    operation: str
    what: str
    """What is sent, in a word; of activations their gradients too."""
    ranks: int
    """Of the group."""
    count: int
    num_bytes: int
    """Of all of them together."""

    @property
    def wire_bytes(self) -> float:
        """What the rank sends, by a ring where there is a choice."""
        return self.num_bytes * bus_factor(self.operation, self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What the volumes follow from."""

    shape: Transformer
    layout: Layout
    precision: Precision
    recompute: Recompute = Recompute.NONE

    def __post_init__(self) -> None:
        self.layout.check(self.shape)

    @property
    def stream(self) -> int:
        """Bytes of a microbatch's residual stream, b s h, for a rank's tokens before tp cuts them."""
        return self.tokens * self.shape.hidden * self.number

    @property
    def tokens(self) -> int:
        return self.layout.micro_batch * self.shape.sequence // self.layout.cp

    @property
    def number(self) -> int:
        return DTYPES[self.precision.activations]

    @property
    def again(self) -> bool:
        """Whether blocks' forwards run twice, collectives included."""
        return self.recompute is Recompute.FULL

    @property
    def attention_again(self) -> bool:
        """Whether attention does, over all of a sequence that context parallelism cuts."""
        return self.recompute is not Recompute.NONE

    def blocks(self, rank: int) -> tuple[int, int]:
        """On a rank of the pipeline: (all, those with experts)."""
        return held_blocks(self.shape, layout=self.layout, rank=rank)


def volumes(traffic: Traffic, *, rank: int = 0) -> tuple[Volume, ...]:
    """Of a rank of the pipeline; axes of one rank send nothing. Raises UsageError where the model does not divide."""
    parts = (_data, _tensor, _context, _expert, _pipeline)
    every = (volume for part in parts for volume in part(traffic, rank))
    return tuple(volume for volume in every if volume.ranks > 1 and volume.count)


def _data(traffic: Traffic, rank: int) -> Iterator[Volume]:
    layout = traffic.layout
    held = elements(traffic.shape, layout=layout, rank=rank)
    yield from _sharing(traffic, "", held.common, layout.shards)
    yield from _sharing(traffic, "expert", held.experts, layout.expert_shards)


def _sharing(traffic: Traffic, whose: str, parameters: int, ranks: int) -> Iterator[Volume]:
    """Rajbhandari et al. 2019, ZeRO, arXiv:1910.02054, section 7: 2 Psi a step below stage 3, 3 Psi there.

    That is for one microbatch. From stage 2 on no rank has room for whole gradients, so every microbatch's
    are reduced; at stage 3 weights are gathered for every forward and backward. FSDP2 that keeps gathered
    weights and whole gradients until a step ends, as pipelines do, sends and holds what stage 1 does.
    """
    if not parameters:
        return
    zero, microbatches = traffic.layout.zero, traffic.layout.microbatches
    gradients, weights = (
        parameters * DTYPES[name] for name in (traffic.precision.gradients, traffic.precision.weights)
    )
    reductions = microbatches if zero >= 2 else 1
    yield Volume(
        axis="dp",
        operation="reduce_scatter" if zero else "all_reduce",
        what=f"{whose} gradients".strip(),
        ranks=ranks,
        count=reductions,
        num_bytes=reductions * gradients,
    )
    gathers = 2 * microbatches if zero == 3 else 1 if zero else 0
    yield Volume(
        axis="dp",
        operation="all_gather",
        what=f"{whose} weights".strip(),
        ranks=ranks,
        count=gathers,
        num_bytes=gathers * weights,
    )


def _tensor(traffic: Traffic, rank: int) -> Iterator[Volume]:
    """Korthikanti et al. 2022, arXiv:2205.05198, section 4.2: in forward and in backward an all-reduce behind the
    attention and one behind the feed-forward, or, cut along the sequence, a gather and a reduction in place of each.

    A forward that runs again needs nothing behind its last product. With experts the tokens that each of them takes
    are gathered and reduced, not all tokens (Megatron-Core's token dispatcher).
    """
    reductions, gathers, regathers = _streams(traffic, rank)
    if not traffic.layout.sequence_parallel:
        yield _tensor_volume(traffic, "all_reduce", "activations", reductions)
        return
    yield _tensor_volume(traffic, "all_gather", "activations", gathers)
    yield _tensor_volume(traffic, "reduce_scatter", "activations", reductions)
    yield _tensor_volume(traffic, "all_gather", "inputs again", regathers)


def _streams(traffic: Traffic, rank: int) -> tuple[int, int, int]:
    """Streams reduced, gathered, and gathered once more, of one microbatch."""
    blocks, routed = traffic.blocks(rank)
    experts = traffic.shape.experts
    behind = blocks - routed + (0 if experts is None else routed * (experts.top_k + (experts.shared > 0)))
    first, last = 0 in traffic.layout.stages(rank), traffic.layout.pipeline.stages - 1 in traffic.layout.stages(rank)
    once = blocks + behind
    reductions = 2 * once + first + last + (blocks if traffic.again else 0)
    gathers = 2 * once + first + last + (once if traffic.again else 0)
    return reductions, gathers, once + last


def _tensor_volume(traffic: Traffic, operation: str, what: str, streams: int) -> Volume:
    count = streams * traffic.layout.microbatches
    return Volume(
        axis="tp",
        operation=operation,
        what=what,
        ranks=traffic.layout.tp,
        count=count,
        num_bytes=count * traffic.stream,
    )


def _context(traffic: Traffic, rank: int) -> Iterator[Volume]:
    blocks = traffic.blocks(rank)[0] * traffic.layout.microbatches
    yield _ulysses(traffic, blocks) if traffic.layout.cp_method == ULYSSES else _ring(traffic, blocks)


def _ring(traffic: Traffic, blocks: int) -> Volume:
    """Keys and values n - 1 hops in forward, again in backward, and their gradients, in fp32, n hops home.

    Liu et al. 2023, arXiv:2310.01889, section 3.
    """
    layout = traffic.layout
    numbers = 2 * traffic.tokens * traffic.shape.kv_width // layout.tp
    hops = (layout.cp - 1) * (3 if traffic.attention_again else 2)
    return Volume(
        axis="cp",
        operation="send",
        what="keys, values",
        ranks=layout.cp,
        count=blocks * (hops + layout.cp),
        num_bytes=blocks * numbers * (hops * traffic.number + layout.cp * DTYPES["fp32"]),
    )


def _ulysses(traffic: Traffic, blocks: int) -> Volume:
    """Queries, keys and values exchanged for heads, the output back, and all of it in backward.

    Jacobs et al. 2023, arXiv:2309.14509, section 3.2: 4 N h / P of a block's forward where all heads have keys.
    Attention that alone runs again needs no exchange behind it.
    """
    layout, shape = traffic.layout, traffic.shape
    there, back = traffic.tokens * (shape.query_width + 2 * shape.kv_width), traffic.tokens * shape.query_width
    theres, backs = 3 if traffic.attention_again else 2, 3 if traffic.again else 2
    return Volume(
        axis="cp",
        operation="all_to_all",
        what="heads",
        ranks=layout.cp,
        count=(theres + backs) * blocks,
        num_bytes=blocks * (theres * there + backs * back) // layout.tp * traffic.number,
    )


def _expert(traffic: Traffic, rank: int) -> Iterator[Volume]:
    """Every token to its top_k experts and back, and its gradients too: Lepikhin et al. 2020, arXiv:2006.16668.

    The experts that lie on the rank itself get a share, as of any exchange, that the wire does not see.
    """
    experts = traffic.shape.experts
    if experts is None:
        return
    passes = 3 if traffic.again else 2
    count = 2 * passes * traffic.blocks(rank)[1] * traffic.layout.microbatches
    yield Volume(
        axis="ep",
        operation="all_to_all",
        what="tokens",
        ranks=traffic.layout.ep,
        count=count,
        num_bytes=count * experts.top_k * traffic.stream // traffic.layout.between,
    )


@lru_cache(maxsize=4)
def _ranks_of_stages(layout: Layout) -> Mapping[int, int]:
    """Stage -> rank of the pipeline; every rank of a layout asks for the same."""
    return {stage: rank for rank in range(layout.pp) for stage in layout.stages(rank)}


def _pipeline(traffic: Traffic, rank: int) -> Iterator[Volume]:
    """A stream a microbatch to the next stage, and its gradient to the stage before: Narayanan et al. 2021,
    arXiv:2104.04473, section 4.1; cut along the sequence each tp rank sends its part, else all of it.

    Where a tied embedding lies at both ends, its gradients are summed over them.
    """
    layout = traffic.layout
    at = _ranks_of_stages(layout)
    hops = sum(at.get(stage + way, rank) != rank for stage in layout.stages(rank) for way in (1, -1))
    yield Volume(
        axis="pp",
        operation="send",
        what="activations",
        ranks=layout.pp,
        count=hops * layout.microbatches,
        num_bytes=hops * layout.microbatches * traffic.stream // layout.between,
    )
    ends = {at[0], at[layout.pipeline.stages - 1]}
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
