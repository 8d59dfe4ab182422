"""Pipeline runs in which orders, durations and transfers determine every instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from tests.analysis.pipeline.orders import Orders
from tests.timeline.build import Row, action, group, message, rank, stall, step
from traincope.plan.pipeline.actions import Action
from traincope.plan.pipeline.schedule import Key
from traincope.store import RankRecords
from traincope.topology import Group


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One step of a pipeline that begins at 0 on all its ranks."""

    orders: Orders
    durations: Mapping[Key, int]
    transfer_ns: int = 0
    """Time from the end of an action to the start of its consumer on another rank."""
    late: Mapping[Action, int] = field(default_factory=dict)
    """Additional ns of single actions."""
    posts_ahead: bool = False
    """Receives are posted at 0 and sends end at the end, as in torch; messages arrive before their waits."""
    begins: Mapping[int, int] = field(default_factory=dict)
    """Stage -> begin of its actions. It still posts its receives at 0."""

    def length(self, of: Action) -> int:
        return self.durations[of.kind, of.stage] + self.late.get(of, 0)

    @cached_property
    def starts(self) -> dict[Action, int]:
        """Start each action as early as its rank and its inputs allow: iterate until nothing changes."""
        starts = {action_: 0 for order in self.orders.values() for action_ in order}
        moved = True
        while moved:
            earliest = {action_: self._earliest(action_, starts) for action_ in starts}
            moved = earliest != starts
            starts = earliest
        return starts

    def end(self) -> int:
        """Return the end of the slowest stage."""
        return max(start + self.length(action_) for action_, start in self.starts.items())

    def _earliest(self, action_: Action, starts: Mapping[Action, int]) -> int:
        previous = self.previous(action_)
        ends = [starts[previous] + self.length(previous)] if previous else [self.begins.get(action_.stage, 0)]
        source = self.source(action_)
        if source:
            ends.append(starts[source] + self.length(source) + self.transfer_ns)
        return max(ends)

    def previous(self, action_: Action) -> Action | None:
        return self._previous[action_]

    @cached_property
    def _previous(self) -> dict[Action, Action | None]:
        return {action_: previous for order in self.orders.values() for previous, action_ in pairwise((None, *order))}

    def rank_of(self, stage: int) -> int | None:
        return self._ranks.get(stage)

    @cached_property
    def _ranks(self) -> dict[int, int]:
        return {action_.stage: rank for rank, order in self.orders.items() for action_ in order}

    def source(self, action_: Action) -> Action | None:
        """Return the action of another rank whose output this action receives."""
        if action_.kind == "W":
            return None
        sender = action_._replace(stage=action_.stage + (-1 if action_.kind == "F" else 1))
        return None if self.rank_of(sender.stage) in (None, self.rank_of(action_.stage)) else sender

    def rows(self, rank: int) -> list[Row]:
        """Return the rank's records: actions, sends, receives, and their stalls."""
        starts, rows = self.starts, []
        for action_ in self.orders[rank]:
            rows += self._receive(action_, starts)
            end = starts[action_] + self.length(action_)
            rows.append(action(action_.kind, starts[action_], end, stage=action_.stage, microbatch=action_.microbatch))
            rows += self._send(action_, end)
        return sorted(rows, key=lambda row: row.start_ns)

    def _receive(self, action_: Action, starts: Mapping[Action, int]) -> list[Row]:
        source, previous = self.source(action_), self.previous(action_)
        if source is None:
            return []
        looked = starts[previous] + self.length(previous) if previous else 0
        sent = starts[source] + self.length(source)
        arrived = max(looked, sent + self.transfer_ns)
        received = message(
            "recv",
            0 if self.posts_ahead else min(looked, sent),
            arrived,
            peer=self.rank_of(source.stage),
            sequence=self._count(source),
        )
        return [received, stall(received, looked, arrived)]

    def _send(self, action_: Action, end: int) -> list[Row]:
        receiver = self.rank_of(action_.stage + (1 if action_.kind == "F" else -1))
        if action_.kind == "W" or receiver in (None, self.rank_of(action_.stage)):
            return []
        until = self.end() if self.posts_ahead else end + self.transfer_ns
        return [message("send", end, until, peer=receiver, sequence=self._count(action_))]

    def _count(self, action_: Action) -> int:
        """Number a message by its sender's stage, direction and microbatch."""
        return (action_.stage * 2 + (action_.kind == "F")) * 1000 + action_.microbatch

    def ranks(self, *, until: int | None = None, extra: Mapping[int, list[Row]] | None = None) -> list[RankRecords]:
        """Record all ranks with one step from 0 to `until` (default: the pipeline's end)."""
        end = self.end() if until is None else until
        return [
            rank(
                number,
                *sorted(
                    [step(0, 0, end), *self.rows(number), *(extra or {}).get(number, [])], key=lambda r: r.start_ns
                ),
                groups=self.groups(),
                coords={"pp": number},
            )
            for number in self.orders
        ]

    def groups(self) -> list[Group]:
        return [group("pp", *self.orders), group("fsdp", *self.orders)]
