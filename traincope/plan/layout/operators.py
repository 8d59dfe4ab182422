"""Operators of one microbatch on one rank: their FLOPs, their bytes, and the time that a device takes for them.

A product takes at least FLOPs / peak, and at least bytes / memory bandwidth. Its intensity, FLOPs per byte, decides
which of the two is longer: Williams et al. 2009, CACM 52(4). Each operand is read, and each result written, once. The
time that kernels need is longer, by `layout.kernels`.

Backward has two products for each: the gradient of the input, and that of the weights. Operators without products read
and write each tensor once per kernel, in the fewest kernels that modules fuse.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from traincope.plan.layout.activations import MASK, ActivationPolicy
from traincope.plan.layout.kernels import GAP_SECONDS
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.machine import Machine
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import DTYPES, Precision
from traincope.plan.model.transformer import Latent, Transformer

FEED_FORWARD, EMBEDDING = "feed-forward", "embedding"
LOSS_ACCESSES = 14
"""Bytes per logit that the loss reads and writes in forward, and again in backward: it casts them to fp32, and takes
their maximum and the sum of their exponentials."""


class Kind(StrEnum):
    """Limit of an operator's rate."""

    PRODUCT = "product"
    ATTENTION = "attention"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Operators of one kind in one block, or at the ends of the model."""

    name: str
    kind: Kind = Kind.MEMORY
    count: int
    """Times in the forward of all blocks of the model."""
    flops: float = 0.0
    """FLOPs of one of them on one rank."""
    moved_bytes: float
    """Bytes that one of them reads and writes."""
    backward_bytes: float = 0.0
    """Bytes of its backward; of a product, those of the sum of its bias' gradients."""
    rows: float = 0.0
    """`number` products of rows x inner and inner x outer; or attention over `rows` keys with heads `inner` wide."""
    inner: float = 0.0
    outer: float = 0.0
    number: float = 1.0
    triton: bool = False
    ordered: bool = False
    """As in `ActivationPolicy`."""
    again: Recompute = Recompute.FULL
    """Recomputation that repeats it; NONE: no recomputation does."""
    is_last: bool = False
    """It is the last product of its block, whose output no backward needs."""
    launches: tuple[int, int] = (1, 2)
    """Kernels of forward and of backward."""

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.moved_bytes

    def least_seconds(self, machine: Machine) -> float:
        """Lower bound of the time of its forward."""
        return max(self.flops / machine.peak_flops, self.moved_bytes * _seconds_per_byte(machine))

    def forward_seconds(self, machine: Machine) -> float:
        """Time of its forward."""
        return self._forward(machine) + self.launches[0] * _gap_seconds(machine)

    def backward_seconds(self, machine: Machine) -> float:
        """Time of its backward."""
        gaps = self.launches[1] * _gap_seconds(machine)
        streamed = self.backward_bytes * _seconds_per_byte(machine) / machine.kernels.copies
        if self.kind is Kind.PRODUCT:
            of_input = self._product(machine, self.rows, self.outer, self.inner)
            of_weights = self._product(machine, self.inner, self.rows, self.outer)
            return of_input + of_weights + streamed + gaps
        if self.kind is Kind.ATTENTION:
            return machine.kernels.backward_share(ordered=self.ordered) * self._forward(machine) + gaps
        return streamed + gaps

    def _forward(self, machine: Machine) -> float:
        if self.kind is Kind.PRODUCT:
            return self._product(machine, self.rows, self.inner, self.outer)
        if self.kind is Kind.ATTENTION:
            return self.flops / (machine.peak_flops * self.attention_share(machine))
        return self.moved_bytes * _seconds_per_byte(machine) / machine.kernels.copies

    def attention_share(self, machine: Machine) -> float:
        """Share of peak of fused attention."""
        return machine.kernels.attention_share(self.rows, self.inner, triton=self.triton, ordered=self.ordered)

    def _product(self, machine: Machine, rows: float, inner: float, outer: float) -> float:
        share = machine.kernels.product_share(rows, inner, outer, number=self.number)
        bytes_seconds = self.moved_bytes * _seconds_per_byte(machine) / machine.kernels.copies
        return max(self.flops / (machine.peak_flops * share), bytes_seconds)


def _seconds_per_byte(machine: Machine) -> float:
    return 0.0 if machine.memory_bytes_per_second is None else 1 / machine.memory_bytes_per_second


def _gap_seconds(machine: Machine) -> float:
    """Time of a device between two kernels."""
    if not machine.kernels.launches:
        return 0.0
    return machine.kernels.launch_seconds if machine.blocking_launches else GAP_SECONDS


def operators(
    shape: Transformer,
    *,
    layout: Layout,
    precision: Precision,
    policy: ActivationPolicy,
    causal_half: bool = False,
) -> tuple[Operator, ...]:
    """Operators of a microbatch's forward on one rank: blocks first, then the ends of the model.

    The FLOPs of all operators, times count and the ranks of tp and cp, are those of `model.flops` for one microbatch,
    but for what each rank of tp does alike, and what attention that is not fused computes outside of windows.
    `causal_half`: attention computes the half that a causal mask leaves. The tokens of experts are spread evenly; an
    expert's weights are read once.
    """
    return _operators(_Rank.of(shape, layout, precision=precision, policy=policy, causal_half=causal_half))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """A rank's part of a microbatch. Layouts that cut a microbatch equally have the same one."""

    shape: Transformer
    micro_batch: int
    tp: int
    cp: int
    ep: int
    stream_ranks: int
    element_bytes: int
    policy: ActivationPolicy
    causal_half: bool

    @classmethod
    def of(
        cls,
        shape: Transformer,
        layout: Layout,
        *,
        precision: Precision,
        policy: ActivationPolicy,
        causal_half: bool,
    ) -> "_Rank":
        return cls(
            shape=shape,
            micro_batch=layout.micro_batch,
            tp=layout.tp,
            cp=layout.cp,
            ep=layout.ep,
            stream_ranks=layout.stream_ranks,
            element_bytes=DTYPES[precision.activations],
            policy=policy,
            causal_half=causal_half,
        )

    @property
    def tokens(self) -> float:
        return self.micro_batch * self.shape.sequence / self.cp

    def attention(self) -> Iterator[Operator]:
        shape, layers, tokens = self.shape, self.shape.layers, self.tokens
        query, keys = shape.query_width / self.tp, shape.key_width / self.tp
        if shape.latent is None:
            yield self._biased(self._product("queries, keys, values", layers, shape.hidden, query + 2 * keys))
        else:
            yield from self._latent(shape.latent)
        yield self._elementwise("positions", layers, 2 * tokens * (query + keys), 2 * tokens * (query + keys))
        yield from self._fused_attention() if self.policy.flash else self._scores()
        output = self._product("attention output", layers, shape.mixed_width / self.tp, shape.hidden)
        yield self._biased(output, split=self.stream_ranks)

    def _latent(self, latent: Latent) -> Iterator[Operator]:
        """Queries, keys and values of a latent attention. tp splits only those of the heads; its ranks make the narrow
        vectors of all tokens, or with sequence parallelism of their part.
        """
        shape, layers, rows = self.shape, self.shape.layers, self.tokens / self.stream_ranks
        query, made = shape.query_width / self.tp, shape.made_width / self.tp
        if latent.q_rank is not None:
            yield self._product("latent queries", layers, shape.hidden, latent.q_rank, rows=rows)
        yield self._product("queries", layers, latent.q_rank or shape.hidden, query)
        yield self._product("latent keys, values", layers, shape.hidden, latent.kv_rank + latent.rope, rows=rows)
        yield self._product("keys, values", layers, latent.kv_rank, made)
        norms = (1, 2) if latent.q_rank is None else (2, 4)
        yield self._elementwise(
            "latent norms", layers, 2 * rows * latent.width, 3 * rows * latent.width, launches=norms
        )

    def _fused_attention(self) -> Iterator[Operator]:
        """Attention that never writes its probabilities. It skips what windows leave out."""
        shape = self.shape
        widths = (shape.query_width + shape.mixed_width) / self.tp
        held = (shape.key_width + shape.value_width) / self.tp
        moved = self.element_bytes * (self.tokens * widths + self.micro_batch * shape.sequence * held)
        for window, count in shape.num_by_window().items():
            reach = shape.squared_reach(window) / shape.sequence
            yield Operator(
                name="attention" if window is None else f"attention, windows of {window}",
                kind=Kind.ATTENTION,
                count=count,
                flops=2 * self.tokens * reach * widths / (2 if self.causal_half else 1),
                moved_bytes=moved,
                rows=min(window or shape.sequence, shape.sequence) / self.cp,
                inner=(shape.query_width + shape.mixed_width) / (2 * shape.heads),
                triton=self.policy.triton,
                ordered=self.policy.ordered,
                again=Recompute.SELECTIVE,
                launches=(1, 3),
            )

    def _scores(self) -> Iterator[Operator]:
        """Attention that writes its scores: two batches of products, with the softmax and its dropout between them.

        It computes what windows leave out too, and masks it.
        """
        shape = self.shape
        width, heads = shape.query_width / shape.heads, self.micro_batch * shape.heads / self.tp
        mixed = shape.mixed_width / shape.heads
        rows, keys = shape.sequence / self.cp, shape.sequence / (2 if self.causal_half else 1)
        for name, inner, outer in (("scores", width, keys), ("mixing", keys, mixed)):
            yield self._product(
                name, shape.layers, inner, outer, rows=rows, number=heads, held=heads, again=Recompute.SELECTIVE
            )
        elements = rows * keys * heads
        if self.policy.score_biases:
            # They are copied into the result of the scores' product, which adds to it.
            yield self._elementwise("biases of scores", shape.layers, 2 * elements, 0.0, again=Recompute.SELECTIVE)
        dropout = MASK / self.element_bytes if self.policy.dropout else 0
        forward, backward = (2 + 2 + dropout, 3 + 2 + dropout) if self.policy.dropout else (2, 3)
        yield self._elementwise(
            "softmax", shape.layers, forward * elements, backward * elements, again=Recompute.SELECTIVE
        )

    def feed_forward(self) -> Iterator[Operator]:
        dense = self.shape.layers - self.shape.expert_layers
        if dense:
            yield from self._mlp(FEED_FORWARD, dense, self.shape.ffn_width)

    def experts(self) -> Iterator[Operator]:
        experts, routed = self.shape.experts, self.shape.expert_layers
        if experts is None or not routed:
            return
        yield self._product("router", routed, self.shape.hidden, experts.count / self.tp)
        held = experts.count / self.ep
        yield from self._mlp("experts", routed, experts.ffn, tokens=self.tokens * experts.top_k, held=held)
        # Tokens are copied into the order of their experts, and back with their weights.
        moved = 4 * self.tokens * experts.top_k * self.shape.hidden
        yield self._elementwise("routing", routed, moved, moved)
        if experts.shared_width:
            yield from self._mlp("shared experts", routed, experts.shared_width)

    def _mlp(
        self, name: str, count: int, width: int, *, tokens: float | None = None, held: float = 1.0
    ) -> Iterator[Operator]:
        rows, gated, inner = self.tokens if tokens is None else tokens, self.shape.gated_mlp, width / self.tp
        each = rows / held
        first = (2 if gated else 1) * inner
        into = self._product(f"{name}, first", count, self.shape.hidden, first, rows=each, number=held, held=held)
        yield self._biased(into)
        read, back = (3, 5) if gated else (2, 3)
        yield self._elementwise(f"{name}, activation", count, read * rows * inner, back * rows * inner)
        last = self._product(f"{name}, second", count, inner, self.shape.hidden, rows=each, number=held, held=held)
        # The router's gradient needs the outputs of experts.
        yield replace(self._biased(last, split=self.stream_ranks), is_last=name == FEED_FORWARD)

    def stream(self) -> Iterator[Operator]:
        """Norms and residuals of the residual stream, which sequence parallelism splits."""
        layers, numbers = self.shape.layers, self.tokens * self.shape.hidden / self.stream_ranks
        mask = 2 * MASK / self.element_bytes if self.policy.dropout else 0
        norms = 10 if self.policy.two_pass_norms else 6
        yield self._elementwise("norms", layers, 4 * numbers, norms * numbers, launches=(2, 4))
        yield self._elementwise("residuals", layers, (6 + mask) * numbers, (6 + 2 * mask) * numbers, launches=(2, 2))

    def ends(self) -> Iterator[Operator]:
        """Embedding, logits and loss."""
        hidden, vocabulary = self.shape.hidden, self.shape.vocabulary / self.tp
        numbers = self.tokens * hidden
        yield self._elementwise(EMBEDDING, 1, 2 * numbers, 4 * numbers, again=Recompute.NONE)
        yield self._product("logits", 1, hidden, vocabulary, again=Recompute.NONE)
        moved = LOSS_ACCESSES * self.tokens * vocabulary / self.element_bytes
        yield self._elementwise("loss", 1, moved, moved, again=Recompute.NONE, launches=(4, 4))

    def _product(
        self,
        name: str,
        count: int,
        inner: float,
        outer: float,
        *,
        rows: float | None = None,
        number: float = 1.0,
        held: float = 1.0,
        again: Recompute = Recompute.FULL,
    ) -> Operator:
        """`number` products of rows x inner and inner x outer; `held` matrices of weights are read."""
        rows = self.tokens if rows is None else rows
        moved = number * (rows * inner + rows * outer) + held * inner * outer
        return Operator(
            name=name,
            kind=Kind.PRODUCT,
            count=count,
            flops=2 * number * rows * inner * outer,
            moved_bytes=self.element_bytes * moved,
            rows=rows,
            inner=inner,
            outer=outer,
            number=number,
            again=again,
        )

    def _biased(self, product: Operator, *, split: int = 1) -> Operator:
        """The product with the sum of its bias' gradients over tokens, which `split` ranks share.

        Forward adds the bias in the product's kernel, or in the one that follows.
        """
        if not self.shape.biases:
            return product
        read = self.element_bytes * product.number * product.rows * product.outer / split
        return replace(product, backward_bytes=read, launches=(product.launches[0], product.launches[1] + 1))

    def _elementwise(
        self,
        name: str,
        count: int,
        forward: float,
        backward: float,
        *,
        again: Recompute = Recompute.FULL,
        launches: tuple[int, int] = (1, 1),
    ) -> Operator:
        """Operators without products, by the numbers that they read and write."""
        return Operator(
            name=name,
            count=count,
            moved_bytes=self.element_bytes * forward,
            backward_bytes=self.element_bytes * backward,
            again=again,
            launches=launches,
        )


@lru_cache(maxsize=4096)
def _operators(rank: _Rank) -> tuple[Operator, ...]:
    return (*rank.attention(), *rank.feed_forward(), *rank.experts(), *rank.stream(), *rank.ends())


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Seconds of a microbatch on one rank, if that rank had all blocks and both ends of the model."""

    products: float
    """Forward and backward of products and of attention."""
    memory: float
    """Forward and backward of the other operators."""
    again: float
    """Products and attention of recomputation."""
    again_memory: float
    """Other operators of recomputation."""
    forward: float
    """Forward of all operators."""
    attention: float
    """Forward and backward of attention, with its recomputation."""
    first: float
    """Forward and backward of the embedding, which the first stage has."""
    last: float
    """Forward and backward of logits and loss, which the last stage has."""
    launches: int
    """Kernels of all blocks and ends."""

    @property
    def total(self) -> float:
        return self.products + self.memory + self.again + self.again_memory

    @property
    def ends(self) -> float:
        return self.first + self.last


def work(
    shape: Transformer,
    *,
    layout: Layout,
    precision: Precision,
    policy: ActivationPolicy,
    machine: Machine,
    causal_half: bool = False,
) -> Work:
    """Time of a microbatch's operators, with the recomputation of `policy`. Arguments as in `operators`."""
    rank = _Rank.of(shape, layout, precision=precision, policy=policy, causal_half=causal_half)
    return _work(rank, machine)


@lru_cache(maxsize=4096)
def _work(rank: _Rank, machine: Machine) -> Work:
    products = memory = again = again_memory = forward = attention = first = last = 0.0
    launches = 0
    for each in _operators(rank):
        ahead, back = each.forward_seconds(machine) * each.count, each.backward_seconds(machine) * each.count
        repeated = ahead if is_repeated(each, rank.policy) else 0.0
        forward += ahead
        launches += each.count * (sum(each.launches) + (each.launches[0] if repeated else 0))
        if each.kind is Kind.MEMORY:
            memory += ahead + back
            again_memory += repeated
        else:
            products += ahead + back
            again += repeated
        if each.again is Recompute.SELECTIVE:
            attention += ahead + back + repeated
        if each.name == EMBEDDING:
            first += ahead + back
        elif each.again is Recompute.NONE:
            last += ahead + back
    return Work(
        products=products,
        memory=memory,
        again=again,
        again_memory=again_memory,
        forward=forward,
        attention=attention,
        first=first,
        last=last,
        launches=launches,
    )


def is_repeated(operator: Operator, policy: ActivationPolicy) -> bool:
    """Return whether recomputation repeats the operator's forward."""
    if operator.again is Recompute.NONE or policy.recompute is Recompute.NONE:
        return False
    if policy.recompute is Recompute.SELECTIVE:
        return operator.again is Recompute.SELECTIVE
    return not (operator.is_last and policy.early_stop)
