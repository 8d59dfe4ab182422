"""Pipeline runs whose every instant follows from orders, durations and transfers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from tests.analysis.orders import Orders
from tests.timeline.build import Row, action, group, message, rank, stall, step
from traincope.plan.actions import Action
from traincope.plan.schedule import Key
from traincope.store import RankRecords
from traincope.topology import Group


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One step of a pipeline that begins at 0 on all its ranks."""

    orders: Orders
    durations: Mapping[Key, int]
    transfer_ns: int = 0
    """From the end of an action to the start of what it feeds on another rank."""
    late: Mapping[Action, int] = field(default_factory=dict)
    """Additional ns that single actions take."""
    posts_ahead: bool = False
    """Receives are posted at 0 and sends ended by the end, as torch does; messages wait until they are looked for."""
    begins: Mapping[int, int] = field(default_factory=dict)
    """Stage -> ns before which it does nothing; it posts its receives at 0 all the same."""

    def length(self, of: Action) -> int:
        return self.durations[of.kind, of.stage] + self.late.get(of, 0)

    @cached_property
    def starts(self) -> dict[Action, int]:
        """Each action as early as its rank and its inputs allow: iterated until nothing moves."""
        starts = {one: 0 for order in self.orders.values() for one in order}
        moved = True
        while moved:
            earliest = {one: self._earliest(one, starts) for one in starts}
            moved = earliest != starts
            starts = earliest
        return starts

    def end(self) -> int:
        """When the slowest stage is done."""
        return max(start + self.length(one) for one, start in self.starts.items())

    def _earliest(self, one: Action, starts: Mapping[Action, int]) -> int:
        before = self.before(one)
        ends = [starts[before] + self.length(before)] if before else [self.begins.get(one.stage, 0)]
        source = self.source(one)
        if source:
            ends.append(starts[source] + self.length(source) + self.transfer_ns)
        return max(ends)

    def before(self, one: Action) -> Action | None:
        return self._before[one]

    @cached_property
    def _before(self) -> dict[Action, Action | None]:
        return {one: before for order in self.orders.values() for before, one in pairwise((None, *order))}

    def rank_of(self, stage: int) -> int | None:
        return self._ranks.get(stage)

    @cached_property
    def _ranks(self) -> dict[int, int]:
        return {one.stage: rank for rank, order in self.orders.items() for one in order}

    def source(self, one: Action) -> Action | None:
        """The action of another rank whose output it receives."""
        if one.kind == "W":
            return None
        sender = one._replace(stage=one.stage + (-1 if one.kind == "F" else 1))
        return None if self.rank_of(sender.stage) in (None, self.rank_of(one.stage)) else sender

    def rows(self, rank: int) -> list[Row]:
        """What that rank recorded: actions, sends, receives, and the stalls for these."""
        starts, rows = self.starts, []
        for one in self.orders[rank]:
            rows += self._receive(one, starts)
            end = starts[one] + self.length(one)
            rows.append(action(one.kind, starts[one], end, stage=one.stage, microbatch=one.microbatch))
            rows += self._send(one, end)
        return sorted(rows, key=lambda row: row.start_ns)

    def _receive(self, one: Action, starts: Mapping[Action, int]) -> list[Row]:
        source, before = self.source(one), self.before(one)
        if source is None:
            return []
        looked = starts[before] + self.length(before) if before else 0
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

    def _send(self, one: Action, end: int) -> list[Row]:
        receiver = self.rank_of(one.stage + (1 if one.kind == "F" else -1))
        if one.kind == "W" or receiver in (None, self.rank_of(one.stage)):
            return []
        until = self.end() if self.posts_ahead else end + self.transfer_ns
        return [message("send", end, until, peer=receiver, sequence=self._count(one))]

    def _count(self, one: Action) -> int:
        """Between two ranks messages are told by their sender's stage, forward or backward, and microbatch."""
        return (one.stage * 2 + (one.kind == "F")) * 1000 + one.microbatch

    def ranks(self, *, until: int | None = None, extra: Mapping[int, list[Row]] | None = None) -> list[RankRecords]:
        """All ranks with one step from 0 to `until` (default: the pipeline's end)."""
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
