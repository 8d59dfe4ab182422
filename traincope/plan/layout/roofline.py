"""Matrix products of one microbatch's forward on one rank, and the time that the device's two limits leave them.

A product takes at least FLOPs / peak, and at least bytes / memory bandwidth. Its intensity, FLOPs per byte, decides
which of the two is longer: Williams et al. 2009, CACM 52(4). Each operand is read, and each result written, once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from traincope.plan.layout.layout import Layout
from traincope.plan.layout.machine import Machine
from traincope.plan.model.precision import DTYPES, Precision
from traincope.plan.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Products of one kind in one block, or the logits."""

    name: str
    count: int
    """Times in the forward of all blocks of the model."""
    flops: float
    """FLOPs of one of them on one rank."""
    moved_bytes: float
    """Bytes that one of them reads and writes."""

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.moved_bytes

    def least_seconds(self, machine: Machine) -> float:
        """Lower bound of its time."""
        memory = machine.memory_bytes_per_second
        return max(self.flops / machine.peak_flops, 0.0 if memory is None else self.moved_bytes / memory)


def operators(shape: Transformer, *, layout: Layout, precision: Precision) -> tuple[Operator, ...]:
    """Operators of a microbatch's forward on one rank: blocks first, then logits.

    Attention counts the half that a causal mask leaves, and is fused: its probabilities are never written. The FLOPs of
    all operators, times count and the ranks of tp and cp, are those of `model.flops` for one microbatch. The tokens of
    experts are spread evenly; an expert's weights are read once.
    """
    return tuple(_operators(shape, layout=layout, element_bytes=DTYPES[precision.activations]))


def _operators(shape: Transformer, *, layout: Layout, element_bytes: int) -> Iterator[Operator]:
    tokens, tp = layout.micro_batch * shape.sequence / layout.cp, layout.tp

    def product(
        name: str, count: int, inner: float, outer: float, *, rows: float = tokens, held: float = 1
    ) -> Operator:
        """`rows` x inner times inner x outer; the weights of `held` matrices are read."""
        moved = rows * inner + held * inner * outer + rows * outer
        return Operator(name=name, count=count, flops=2 * rows * inner * outer, moved_bytes=element_bytes * moved)

    layers, hidden, query = shape.layers, shape.hidden, shape.query_width
    yield product("queries, keys, values", layers, hidden, (query + 2 * shape.kv_width) / tp)
    keys = layout.micro_batch * shape.sequence
    yield Operator(
        name="attention",
        count=layers,
        flops=4 * tokens * shape.sequence * query / tp / 2,
        moved_bytes=element_bytes * (2 * tokens * query + 2 * keys * shape.kv_width) / tp,
    )
    yield product("attention output", layers, query / tp, hidden)
    first = 2 if shape.gated_mlp else 1
    dense = layers - shape.expert_layers
    if dense:
        yield product("feed-forward, first", dense, hidden, first * shape.ffn_width / tp)
        yield product("feed-forward, second", dense, shape.ffn_width / tp, hidden)
    if shape.experts is not None and shape.expert_layers:
        experts, routed = shape.experts, shape.expert_layers
        rows, held = tokens * experts.top_k, experts.count / layout.ep
        yield product("router", routed, hidden, experts.count / tp)
        yield product("experts, first", routed, hidden, first * experts.ffn / tp, rows=rows, held=held)
        yield product("experts, second", routed, experts.ffn / tp, hidden, rows=rows, held=held)
        if experts.shared_width:
            yield product("shared experts, first", routed, hidden, first * experts.shared_width / tp)
            yield product("shared experts, second", routed, experts.shared_width / tp, hidden)
    yield product("logits", 1, hidden, shape.vocabulary / tp)
