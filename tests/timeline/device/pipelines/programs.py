"""Programs of pipelined trainings for a virtual GPU: the actions of each rank, and its messages as torch issues them.

torch inserts sends after the actions whose output another rank needs, and posts each receive where its send is issued.
A receive is waited for right before its action, a send at the end of the schedule. torch's 1F1B waits for each receive
at once, and puts a send and a receive between the same ranks into one batch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.virtual_gpu.actions import (
    COMPUTE_STREAM,
    Group,
    Meaning,
    Program,
    Range,
    RecordEvent,
    WaitEvent,
    after,
    backward,
    collective,
    evaluate,
    forward,
    kernel,
    next_batch,
    operator,
    optimizer,
    sleep,
    step,
)
from tests.virtual_gpu.actions import (
    Action as Act,
)
from traincope.plan.pipeline.actions import Action

GROUP_STREAM = 40
Orders = Mapping[int, tuple[Action, ...]]
Row = list[tuple[str, Action]]
"""Work of a host: `run` an action; `send` its output, or `recv` its input; `exchange`: send it, and receive the input
of the next one; `wait` for its send.
"""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One step of a pipelined training, in us."""

    orders: Orders
    times: Mapping[str, int]
    """Kind of action -> work of the GPU."""
    wire: int = 5
    slower: Mapping[int, int] = field(default_factory=dict)
    """Stage -> additional work of the GPU in each of its actions."""
    late: Mapping[Action, int] = field(default_factory=dict)
    """Action -> additional work of the GPU."""
    host: Mapping[int, int] = field(default_factory=dict)
    """Rank -> work of the host before each action."""
    batch: Mapping[int, int] = field(default_factory=dict)
    """Rank -> wait for data at the begin of a step."""
    steps: int = 1
    one_stream: bool = False
    """Messages of a rank run on one stream, otherwise on one per peer."""
    batched: bool = False
    """The messages of torch's 1F1B."""
    loss: int = 0
    """Work of the GPU in the loss after each forward of the last stage."""

    @property
    def rank_of(self) -> dict[int, int]:
        return {action.stage: rank for rank, order in self.orders.items() for action in order}

    def source(self, action: Action) -> Action | None:
        """Return the action of another rank whose output this action needs."""
        if action.kind == "W":
            return None
        sender = action._replace(stage=action.stage + (-1 if action.kind == "F" else 1))
        rank = self.rank_of.get(sender.stage)
        return None if rank in (None, self.rank_of[action.stage]) else sender

    def consumer(self, action: Action) -> Action | None:
        """Return the action of another rank that needs this one's output."""
        if action.kind == "W":
            return None
        receiver = action._replace(stage=action.stage + (1 if action.kind == "F" else -1))
        rank = self.rank_of.get(receiver.stage)
        return None if rank in (None, self.rank_of[action.stage]) else receiver

    def program(self) -> Program:
        rows = self._batched_rows() if self.batched else self._rows()
        return Program(ranks=tuple(self._rank(rank, rows[rank]) for rank in self.orders))

    def _rank(self, rank: int, row: Row) -> tuple[Act, ...]:
        body = tuple(self._body(rank, row))
        return tuple(step(number, *body, optimizer(kernel(5))) for number in range(1, self.steps + 1))

    def _rows(self) -> dict[int, Row]:
        """Rank -> what its host does. A receive is posted when the rank that sends has done its action."""
        rows: dict[int, Row] = {rank: [] for rank in self.orders}
        rest = {rank: list(order) for rank, order in self.orders.items()}
        sent: set[Action] = set()
        while any(rest.values()):
            ready = [
                rank
                for rank, order in rest.items()
                if order and (self.source(order[0]) is None or self.source(order[0]) in sent)
            ]
            assert ready, "the order cannot run"
            for rank in ready:
                action = rest[rank].pop(0)
                rows[rank].append(("run", action))
                consumer = self.consumer(action)
                if consumer is not None:
                    sent.add(action)
                    rows[rank].append(("send", action))
                    rows[self.rank_of[consumer.stage]].append(("recv", consumer))
        sends: dict[int, Row] = {
            rank: [("wait", action) for what, action in row if what == "send"][::-1] for rank, row in rows.items()
        }
        return {rank: row + sends[rank] for rank, row in rows.items()}

    def _batched_rows(self) -> dict[int, Row]:
        """Rank -> what its host does in torch's 1F1B, whose order is that of `orders`."""
        return {rank: list(self._batched_row(order)) for rank, order in self.orders.items()}

    def _batched_row(self, order: tuple[Action, ...]) -> Iterator[tuple[str, Action]]:
        """Between a forward and a backward, torch issues the send of the one and the receive of the other together."""
        unsent = waits = None
        for at, action in enumerate(order):
            receives = self.source(action) is not None
            turns = at > 0 and order[at - 1].kind != action.kind
            if turns and unsent is not None and receives:
                yield "exchange", unsent
            else:
                if unsent is not None:
                    yield "send", unsent
                    waits = unsent
                if receives:
                    yield "recv", action
            yield "run", action
            if waits is not None:
                yield "wait", waits
            waits, unsent = None, action if self.consumer(action) is not None else None
        if unsent is not None:
            yield from (("send", unsent), ("wait", unsent))

    def _body(self, rank: int, row: Row) -> Iterator[Act]:
        if rank in self.batch:
            yield next_batch(sleep(self.batch[rank]))
        order = self.orders[rank]
        for what, action in row:
            if what == "run":
                if rank in self.host:
                    yield sleep(self.host[rank])
                if self.source(action) is not None:
                    yield WaitEvent(event=f"recv {action}", stream=COMPUTE_STREAM)
                yield self.act(action)
            elif what == "wait":
                yield WaitEvent(event=f"send {action}", stream=COMPUTE_STREAM)
            elif what == "exchange":
                yield from self._exchange(rank, action, order[order.index(action) + 1])
            else:
                yield from self._message(rank, what, action)

    def _message(self, rank: int, what: str, action: Action) -> Iterator[Act]:
        """Post a message. Its group is the direction between two ranks."""
        other = self.source(action) if what == "recv" else self.consumer(action)
        assert other is not None
        peer = self.rank_of[other.stage]
        source, destination = (rank, peer) if what == "send" else (peer, rank)
        low, high = sorted((rank, peer))
        stream = GROUP_STREAM if self.one_stream else GROUP_STREAM + 10 * low + high + 1
        group = Group(name=f"{source}>{destination}", ranks=(source, destination), description="pp")
        yield from after(f"{what} {action} issued", stream=COMPUTE_STREAM, on=stream)
        yield collective(group, self.wire, stream=stream, operation=what)
        yield RecordEvent(event=f"{what} {action}", stream=stream)

    def _exchange(self, rank: int, sent: Action, received: Action) -> Iterator[Act]:
        """Send and receive in one kernel. Its group is the two ranks."""
        consumer = self.consumer(sent)
        assert consumer is not None
        low, high = sorted((rank, self.rank_of[consumer.stage]))
        group = Group(name=f"{low}<>{high}", ranks=(low, high), description="pp")
        yield from after(f"send {sent} issued", stream=COMPUTE_STREAM, on=GROUP_STREAM)
        yield collective(group, self.wire, stream=GROUP_STREAM, operation="send_recv")
        yield RecordEvent(event=f"recv {received}", stream=GROUP_STREAM)

    def act(self, action: Action) -> Range:
        us = self.length(action)
        last = action.stage == max(self.rank_of)
        if action.kind == "F":
            body: tuple[Act, ...] = (forward(kernel(us)),)
            if last and self.loss:
                body += (operator(kernel(self.loss), name="aten::mse_loss"),)
        else:
            body = (backward(evaluate("MmBackward0", kernel(us))),)
        return Range(name=f"PP:{action}", body=body, meaning=Meaning.ACTION)

    def length(self, action: Action) -> int:
        return self.times[action.kind] + self.slower.get(action.stage, 0) + self.late.get(action, 0)
