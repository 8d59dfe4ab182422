"""Pipeline runs whose every instant follows from orders, durations and transfers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.analysis.orders import Orders
from tests.timeline.build import Row, action, group, message, rank, stall, step
from traincope.plan.actions import Action
from traincope.plan.schedule import Key
from traincope.store import RankRecords
from traincope.topology import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One step of a pipeline that begins at 0 on all its ranks; rank r holds stage r."""

    orders: Orders
    durations: Mapping[Key, int]
    transfer_ns: int = 0
    """From the end of an action to the start of what it feeds on another rank."""
    late: Mapping[Action, int] = field(default_factory=dict)
    """Additional ns that single actions take."""
    begins: Mapping[int, int] = field(default_factory=dict)
    """Stage -> ns before which it does nothing; it posts its receives at 0 all the same."""

    def length(self, of: Action) -> int:
        return self.durations[of.kind, of.stage] + self.late.get(of, 0)

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
        return max(start + self.length(one) for one, start in self.starts().items())

    def _earliest(self, one: Action, starts: Mapping[Action, int]) -> int:
        before = self.before(one)
        ends = [starts[before] + self.length(before)] if before else [self.begins.get(one.stage, 0)]
        source = self.source(one)
        if source:
            ends.append(starts[source] + self.length(source) + self.transfer_ns)
        return max(ends)

    def before(self, one: Action) -> Action | None:
        order = self.orders[one.stage]
        at = order.index(one)
        return order[at - 1] if at else None

    def source(self, one: Action) -> Action | None:
        """The action of another rank whose output it receives."""
        sender = Action(one.kind, one.stage + (-1 if one.kind == "F" else 1), one.microbatch)
        return sender if sender.stage in self.orders else None

    def rows(self, stage: int) -> list[Row]:
        """What that rank recorded: actions, sends, receives, and the stalls for these."""
        starts, rows = self.starts(), []
        for one in self.orders[stage]:
            rows += self._receive(one, starts)
            end = starts[one] + self.length(one)
            rows.append(action(one.kind, starts[one], end, stage=stage, microbatch=one.microbatch))
            rows += self._send(one, end)
        return sorted(rows, key=lambda row: row.start_ns)

    def _receive(self, one: Action, starts: Mapping[Action, int]) -> list[Row]:
        source, before = self.source(one), self.before(one)
        if source is None:
            return []
        posted = starts[before] + self.length(before) if before else 0
        sent = starts[source] + self.length(source)
        arrived = max(posted, sent + self.transfer_ns)
        received = message(
            "recv",
            min(posted, sent),
            arrived,
            peer=source.stage,
            sequence=self._count(one),
        )
        return [received, stall(received, posted, arrived)]

    def _send(self, one: Action, end: int) -> list[Row]:
        receiver = one.stage + (1 if one.kind == "F" else -1)
        if receiver not in self.orders:
            return []
        return [message("send", end, end + self.transfer_ns, peer=receiver, sequence=self._count(one))]

    def _count(self, one: Action) -> int:
        """Forwards and backwards go opposite ways, so each is counted by its microbatch."""
        return one.microbatch

    def ranks(self, *, until: int | None = None, extra: Mapping[int, list[Row]] | None = None) -> list[RankRecords]:
        """All ranks with one step from 0 to `until` (default: the pipeline's end)."""
        end = self.end() if until is None else until
        return [
            rank(
                stage,
                *sorted([step(0, 0, end), *self.rows(stage), *(extra or {}).get(stage, [])], key=lambda r: r.start_ns),
                groups=self.groups(),
                coords={"pp": stage},
            )
            for stage in self.orders
        ]

    def groups(self) -> list[Group]:
        return [group("pp", *self.orders), group("fsdp", *self.orders)]
