"""Peak bytes of each rank of a pipeline in a training step: its forwards and backwards, played in their order."""

from collections.abc import Callable
from dataclasses import dataclass

from traincope.errors import UsageError
from traincope.plan.allocator import operators as ops
from traincope.plan.allocator.modules import INDEX, Model, experts_of
from traincope.plan.allocator.operators import FLOAT
from traincope.plan.allocator.sharing import ROOT, Sharing, Unit, Units, Whole
from traincope.plan.allocator.tape import Node, Recomputation, Storage, Tape, Value
from traincope.plan.model.flops import Recompute
from traincope.plan.pipeline.actions import FORWARD, Order
from traincope.plan.pipeline.orders import SCHEDULES, orders


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """Bytes of one rank of the pipeline. Its peers on the other axes hold at most as much."""

    rank: int
    held_bytes: int
    """Bytes from step to step: parameters, optimizer state, buckets of gradients, tensors that stages receive into."""
    peak_bytes: int
    """Most bytes at any time of a step."""


def rank_peaks(model: Model) -> tuple[RankPeak, ...]:
    """Peak of each rank of the pipeline.

    Raises UsageError for a model that does not divide over the layout, and for a layout that is not described here: a
    schedule that splits backward, and a pipeline of sharded or replicated stages.
    """
    layout = model.layout
    layout.check(model.shape)
    if SCHEDULES[layout.order_name].splits_backward:
        raise UsageError(f"{layout.order_name} splits backward, and its peak has no formula here; use 1f1b")
    if layout.pp > 1 and layout.shards > 1:
        raise UsageError(
            f"pp = {layout.pp} with {layout.shards} data ranks has no formula for its peak; ask for one of the two"
        )
    order = orders(layout.order_name, layout.pipeline)
    return tuple(_Rank(model, rank=rank).play(order[rank]) for rank in range(layout.pp))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    """Nodes and values that a forward leaves for its backward."""

    tape: list[Node | Recomputation | Callable[[], None]]
    result: Value
    """The loss, or what the next stage receives."""
    entry: Node
    """Place of the gradient that the stage before receives."""
    kept: tuple[Value, ...]
    """Other values that live until backward has ended."""


class _Rank:
    def __init__(self, model: Model, *, rank: int) -> None:
        layout = model.layout
        self._model, self._rank = model, rank
        self._tape = Tape(enter=self._enter)
        self._stages, self._blocks = layout.stages(rank), layout.blocks(model.shape)
        self._last = layout.pipeline.stages - 1
        self._sharing = self._make_sharing()
        self._passed: dict[tuple[int, int], _Forward] = {}

    def play(self, order: Order) -> RankPeak:
        """Play one step. The first backward keeps gradients, and later ones add to them."""
        tape, microbatches = self._tape, self._model.layout.microbatches
        held = tape.now = self._sharing.held_bytes + self._received_bytes
        tape.take(3 * INDEX * self._model.rows)  # the batch, its inputs and its targets
        for kind, stage, microbatch in order:
            self._sharing.begin(first=microbatch == 0, last=microbatch == microbatches - 1)
            (self._forward if kind == FORWARD else self._backward)(stage, microbatch)
        return RankPeak(rank=self._rank, held_bytes=held, peak_bytes=tape.peak)

    @property
    def _received_bytes(self) -> int:
        """torch's stages receive activations and gradients of each microbatch into tensors that stay."""
        size = self._model.stream_bytes * self._model.layout.microbatches
        return sum(size * ((stage > 0) + (stage < self._last)) for stage in self._stages)

    def _forward(self, stage: int, microbatch: int) -> None:
        model, tape, entry = self._model, self._tape, Node()
        kept: tuple[Value, ...] = ()
        leave_root = self._enter(ROOT)
        x = model.embed(tape) if stage == 0 else Value(self._received(), entry)
        run = _run_recomputed if model.recompute is Recompute.FULL else Model.block
        for layer in self._blocks[stage]:
            leave = self._enter(str(layer))
            mixed = run(model, tape, x, layer=layer)
            leave()
            tape.drop(x)
            x = mixed
        if stage == self._last:
            logits = model.predict(tape, x)
            leave_root()
            loss = ops.cross_entropy(tape, logits, split=model.layout.tp > 1)
            if model.layout.pp > 1:  # torch's stage keeps its output until its backward has ended
                tape.hold(logits.storage)
                kept = (logits,)
            tape.drop(x, logits)
            x = loss
        else:
            leave_root()  # x stays: it is sent, and torch waits for all sends at the end of the step
        self._passed[stage, microbatch] = _Forward(tape=tape.detach(), result=x, entry=entry, kept=kept)

    def _backward(self, stage: int, microbatch: int) -> None:
        """Run a stage backward. The gradient of its input stays, because it is sent."""
        tape, forward = self._tape, self._passed.pop((stage, microbatch))
        is_last = stage == self._last
        tape.send(forward.result.node, tape.take(FLOAT) if is_last else self._received())
        tape.backward(forward.tape, receive=self._sharing.receive)
        if is_last:
            tape.drop(forward.result, *forward.kept)

    def _received(self) -> Storage:
        """Tensor that has arrived. It stays, and `_received_bytes` counts it."""
        return Storage(self._model.stream_bytes, holders=2)

    def _enter(self, unit: str) -> Callable[[], None]:
        """Begin a unit of FSDP, in forward or in recomputation; the result ends it."""
        tape, sharing, outer, forward = self._tape, self._sharing, self._tape.unit, not self._tape.again
        if forward:
            sharing.before_forward(unit)
        tape.record(lambda: sharing.after_backward(unit))
        tape.unit = unit

        def leave() -> None:
            tape.unit = outer
            tape.record(lambda: sharing.before_backward(unit))
            if forward:
                sharing.after_forward(unit)

        return leave

    def _make_sharing(self) -> Sharing:
        model, layout = self._model, self._model.layout
        root = [
            *(model.embedding_parameters if 0 in self._stages else ()),
            *(model.head_parameters if self._last in self._stages else ()),
        ]
        layers = [layer for stage in self._stages for layer in self._blocks[stage]]
        # The engine gives replicas of tensor-parallel parts to FSDP too, with shards of one rank.
        if layout.zero >= 2 or (layout.tp > 1 and layout.shards > 1):
            return Units(
                tape=self._tape,
                units=_units(model, root=root, layers=layers),
                reshards=layout.zero == 3,
                reduces_each=layout.zero == 2,
            )
        blocks = [each for layer in layers for each in (*model.parameters(layer), *model.expert_parameters(layer))]
        return Whole(
            tape=self._tape,
            parameters=[*root, *blocks],
            bucketed=layout.shards > 1,
            optimizer_ranks=layout.shards if layout.zero == 1 else 1,
        )


def _units(model: Model, *, root: list[int], layers: list[int]) -> dict[str, Unit]:
    """FSDP's units. Under `ep` the experts of a block are units of their own, shared by fewer ranks."""
    ranks = model.shards if model.layout.zero >= 2 else 1
    units = {ROOT: Unit(num_bytes=sum(root), ranks=ranks)}
    for layer in layers:
        common, spread = sum(model.parameters(layer)), sum(model.expert_parameters(layer))
        if model.layout.ep == 1:
            common += spread
        elif spread:
            units[experts_of(layer)] = Unit(num_bytes=spread, ranks=ranks // model.layout.ep)
        units[str(layer)] = Unit(num_bytes=common, ranks=ranks)
    return units


def _run_recomputed(model: Model, tape: Tape, x: Value, *, layer: int) -> Value:
    """A block that keeps only its input, and runs again in backward (Chen et al. 2016, arXiv:1604.06174)."""
    recorded = tape.detach()
    result = model.block(tape, Value(x.storage), layer=layer)
    tape.forget(tape.detach())
    tape.restore(recorded)
    tape.hold(x.storage)
    node, unit = Node(edges=(x.node,), gradients=(None,)), tape.unit

    def again(receive: Callable[[str, Storage], None]) -> None:
        gradient, node.gradient = node.gradient, None
        entry = Node()
        outer, tape.unit, tape.again = tape.unit, unit, True
        tape.drop(model.block(tape, Value(x.storage, entry), layer=layer))
        tape.unit, tape.again = outer, False
        nodes = tape.detach()
        last = nodes[-1]
        assert isinstance(last, Node)
        last.gradient = gradient
        tape.backward(nodes, receive=receive)
        tape.drop(x)
        assert entry.gradient is not None
        tape.send(x.node, entry.gradient)

    tape.record(Recomputation(again))
    return Value(result.storage, node)
