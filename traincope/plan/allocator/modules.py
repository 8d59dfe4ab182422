"""The engine's model as operators: embedding, blocks, and the head with its loss."""

from dataclasses import dataclass

from traincope.plan.allocator import operators as ops
from traincope.plan.allocator.operators import FLOAT
from traincope.plan.allocator.tape import Tape, Value
from traincope.plan.layout.layout import Layout
from traincope.plan.model.flops import Recompute
from traincope.plan.model.transformer import Transformer

INDEX = 8
"""Bytes of a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes of one rank's part of the model, for the tokens of one microbatch."""

    shape: Transformer
    layout: Layout
    recompute: Recompute = Recompute.NONE
    dropout: bool = False
    capacity: int | None = None
    """Rows of an expert for each sequence. None: as many rows as choices."""

    @property
    def shards(self) -> int:
        """Ranks that share one copy of the parameters under FSDP."""
        return self.layout.shards // self.layout.replicas

    @property
    def rows(self) -> int:
        """Tokens of a microbatch on this rank, in all of a `tp` group together."""
        return self.layout.micro_batch * self.shape.sequence // self.layout.cp

    @property
    def stream_bytes(self) -> int:
        """Bytes of the residual stream."""
        return FLOAT * self.rows * self.shape.hidden // self.layout.stream_ranks

    def parameters(self, layer: int) -> tuple[int, ...]:
        """Bytes of each of a block's tensors on this rank, before FSDP cuts them, without routed experts."""
        shape, tp = self.shape, self.layout.tp
        norms = [FLOAT * shape.hidden] * 2
        matrices = [shape.hidden * width for width in (shape.query_width, shape.kv_width, shape.kv_width)]
        matrices.append(shape.query_width * shape.hidden)
        experts = shape.experts if self.is_routed(layer) else None
        if experts is None:
            matrices += [shape.hidden * shape.ffn_width] * 3
        else:
            norms.append(FLOAT * shape.hidden * experts.count)
            matrices += [shape.hidden * experts.shared_width] * (3 if experts.shared else 0)
        return (*norms, *(FLOAT * each // tp for each in matrices))

    def expert_parameters(self, layer: int) -> tuple[int, ...]:
        """Bytes of each tensor of a block's routed experts on this rank, before FSDP cuts them."""
        experts = self.shape.experts
        if experts is None or not self.is_routed(layer):
            return ()
        each = experts.count * self.shape.hidden * experts.ffn
        return (FLOAT * each // (self.layout.tp * self.layout.ep),) * 3

    @property
    def embedding_parameters(self) -> tuple[int, ...]:
        return (FLOAT * self.shape.embedding_weights // self.layout.tp,)

    @property
    def head_parameters(self) -> tuple[int, ...]:
        return FLOAT * self.shape.hidden, *self.embedding_parameters

    def is_routed(self, layer: int) -> bool:
        return self.shape.num_routed(range(layer, layer + 1)) > 0

    def embed(self, tape: Tape) -> Value:
        shape, tp = self.shape, self.layout.tp
        whole = ops.embedding(tape, rows=self.rows, width=shape.hidden, vocabulary=shape.vocabulary // tp)
        return self._reduce(tape, whole)

    def block(self, tape: Tape, x: Value, *, layer: int) -> Value:
        """A block. The caller holds x during it."""
        normed = ops.rms_norm(tape, x, width=self.shape.hidden)
        gathered = self._gather(tape, normed)
        mixed = self._reduce(tape, self._attend(tape, gathered))
        tape.drop(gathered)
        x = self._join(tape, x, mixed)
        normed = ops.rms_norm(tape, x, width=self.shape.hidden)
        if self.is_routed(layer):
            result = self._experts(tape, normed, layer=layer)
            tape.drop(normed)
        else:
            gathered = self._gather(tape, normed)
            # torch's checkpoint stops once it has the last tensor that backward needs.
            stops = tape.again and not self.dropout and self.layout.tp == 1
            mixed = self._feed_forward(tape, gathered, width=self.shape.ffn_width, stops=stops)
            result = self._reduce(tape, mixed)
            tape.drop(gathered)
        result = self._join(tape, x, result)
        tape.drop(x)
        return result

    def predict(self, tape: Tape, x: Value) -> Value:
        """Norm and logits. The caller holds x during it."""
        shape, tp = self.shape, self.layout.tp
        normed = ops.rms_norm(tape, x, width=shape.hidden)
        gathered = self._gather(tape, normed)
        logits = ops.linear(tape, gathered, inputs=shape.hidden, outputs=shape.vocabulary // tp)
        tape.drop(gathered)
        return logits

    def _attend(self, tape: Tape, x: Value) -> Value:
        shape, tp = self.shape, self.layout.tp
        query, kv = shape.query_width // tp, shape.kv_width // tp
        parts = [ops.linear(tape, x, inputs=shape.hidden, outputs=width) for width in (query, kv, kv)]
        turned = [ops.rotate(tape, each) for each in parts[:2]]
        row_bytes = FLOAT * self.rows * shape.heads // tp
        keeps = self.recompute is not Recompute.SELECTIVE
        mixed = ops.attention(tape, turned[0], turned[1], parts[2], row_bytes=row_bytes, keeps=keeps)
        tape.drop(*turned)
        joined = ops.copy(tape, mixed)
        result = ops.linear(tape, joined, inputs=query, outputs=shape.hidden)
        tape.drop(joined, mixed, *parts)
        return result

    def _feed_forward(self, tape: Tape, x: Value, *, width: int, stops: bool = False) -> Value:
        shape, width = self.shape, width // self.layout.tp
        gate = ops.linear(tape, x, inputs=shape.hidden, outputs=width)
        opened = ops.silu(tape, gate)
        tape.drop(gate)
        up = ops.linear(tape, x, inputs=shape.hidden, outputs=width)
        inner = ops.multiply(tape, opened, up)
        tape.drop(opened, up)
        result = ops.linear(tape, inner, inputs=width, outputs=shape.hidden, stops=stops)
        tape.drop(inner)
        return result

    def _join(self, tape: Tape, x: Value, part: Value) -> Value:
        """Residual connection. Drops the part."""
        if self.dropout:
            whole, part = part, ops.dropout(tape, part)
            tape.drop(whole)
        result = ops.add(tape, x, part)
        tape.drop(part)
        return result

    def _gather(self, tape: Tape, x: Value) -> Value:
        """All tokens of a `tp` group. Drops x."""
        if self.layout.tp == 1:
            return x
        whole = x.num_bytes * self.layout.stream_ranks
        # Along the sequence, so the parts that arrived are concatenated; backward cuts, sends a copy, and sums.
        result = tape.run(x, out=whole, gradients=(x.num_bytes,), forward=whole, backward=2 * whole)
        tape.drop(x)
        return result

    def _reduce(self, tape: Tape, x: Value) -> Value:
        """This rank's tokens of the sum over a `tp` group. Drops x."""
        if self.layout.tp == 1:
            return x
        whole = x.num_bytes
        part = whole // self.layout.stream_ranks
        result = tape.run(x, out=part, gradients=(whole,), forward=2 * whole, backward=whole)
        tape.drop(x)
        return result

    def _experts(self, tape: Tape, x: Value, *, layer: int) -> Value:
        """Router, rows by expert, the experts, and their weighted sum for each token."""
        shape, experts = self.shape, self.shape.experts
        assert experts is not None
        choices, row = self.rows * experts.top_k, FLOAT * shape.hidden
        # Probabilities of all experts; the number, probability, weight and row of each choice.
        router = FLOAT * self.rows * experts.count + choices * (2 * INDEX + 2 * FLOAT)
        weights = tape.run(
            x,
            out=router,
            gradients=(x.num_bytes,),
            saved=(x,),
            saves_output=True,
            weights=(row * experts.count,),
        )
        repeated = tape.run(x, out=choices * row, gradients=(x.num_bytes,))
        rows = ops.place(tape, repeated, rows=self._routed_rows * row, spare=row)
        tape.drop(repeated)
        passed = self._run_experts(tape, rows, layer=layer)
        padded = tape.run(passed, out=passed.num_bytes + row, gradients=(passed.num_bytes,))
        chosen = tape.run(padded, out=choices * row, gradients=(padded.num_bytes,))
        tape.drop(passed, padded)
        weighted = tape.run(
            chosen,
            weights,
            out=choices * row,
            gradients=(choices * row, FLOAT * choices),
            saved=(chosen, weights),
            backward=choices * row,
        )
        mixed = tape.run(weighted, out=self.rows * row, gradients=(None,))
        tape.drop(weighted, weights, chosen, rows)
        if not experts.shared:
            return mixed
        shared = self._feed_forward(tape, x, width=experts.shared_width)
        result = ops.add(tape, mixed, shared)
        tape.drop(mixed, shared)
        return result

    @property
    def _routed_rows(self) -> int:
        experts = self.shape.experts
        assert experts is not None
        if self.capacity is None or self.layout.cp > 1:
            return self.rows * experts.top_k
        return experts.count * self.layout.micro_batch * self.capacity

    def _run_experts(self, tape: Tape, rows: Value, *, layer: int) -> Value:
        """Rows through the experts. With `ep` they travel to the ranks of their experts and back, the same number."""
        if self.layout.ep == 1:
            return self._multiply_experts(tape, rows)
        size = rows.num_bytes
        arrived = tape.run(rows, out=size, gradients=(size,))
        ordered = tape.run(arrived, out=size, gradients=(size,))
        leave = tape.enter(experts_of(layer))
        passed = self._multiply_experts(tape, ordered)
        leave()
        returning = ops.place(tape, passed, rows=size, spare=0)
        tape.drop(ordered)
        returned = tape.run(returning, out=size, gradients=(size,))
        tape.drop(arrived, passed, returning)
        return returned

    def _multiply_experts(self, tape: Tape, rows: Value) -> Value:
        shape, experts = self.shape, self.shape.experts
        assert experts is not None
        num_rows, weight = rows.num_bytes // (FLOAT * shape.hidden), self.expert_parameters(shape.layers - 1)[0]
        size = FLOAT * num_rows * experts.ffn
        gate, up = (
            tape.run(rows, out=size, gradients=(rows.num_bytes,), saved=(rows,), weights=(weight,)) for _ in range(2)
        )
        opened = ops.silu(tape, gate)
        inner = ops.multiply(tape, opened, up)
        tape.drop(gate, opened, up)
        result = tape.run(inner, out=rows.num_bytes, gradients=(size,), saved=(inner,), weights=(weight,))
        tape.drop(inner)
        return result


def experts_of(layer: int) -> str:
    """Name of FSDP's unit of a block's experts under expert parallelism."""
    return f"{layer}.experts"
