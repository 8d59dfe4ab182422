"""A simulated tree of agents: real reductions, places and clocks' bounds, messages without a network.

Each host's clock is ahead of true time by a known amount and drifts. Messages take a drawn time.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tests.timeline.hosts import _shown
from traincope.live.tree.entries import OwnParts, names_of, on_clock, read_entries
from traincope.live.tree.offsets import ParentClock
from traincope.live.tree.places import Places
from traincope.live.tree.reduction import OWN, Reduction
from traincope.live.tree.results import Known, read_results
from traincope.store import RankRecords
from traincope.topology import Host

TURN_NS = 1_000_000_000
MAX_DELAY_NS = 300_000


@dataclass
class Traffic:
    """Bytes that one agent sent."""

    up: int = 0
    down: int = 0


class Agent:
    """One host's agent."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[RankRecords],
        *,
        ahead_ns: int,
        drift: float,
        true_ns: Callable[[], int],
    ) -> None:
        self.host = Host(name=name, boot_id=name)
        self.ahead_ns, self.drift = ahead_ns, drift
        self.ranks = [self._shown(rank) for rank in ranks]
        self.known, self.traffic = Known(now_ns=true_ns), Traffic()
        self.reduction = Reduction(on_results=self.known.add, now_ns=true_ns)
        self.clock, self._parts = ParentClock(), OwnParts()
        self.parent: Agent | None = None
        self.number = OWN
        self.children: dict[str, int] = {}

    def now_ns(self, true_ns: int) -> int:
        return int(_shown(np.array([true_ns]), ahead_ns=self.ahead_ns, drift=self.drift)[0])

    def contribute(self, *, until_ns: int, since_ns: int = 0) -> None:
        """Read the own records of a true time, again as far as successive copies overlap."""
        own, begin, limit = {rank.rank for rank in self.ranks}, self.now_ns(since_ns), self.now_ns(until_ns)
        for rank in self.ranks:
            segments = tuple(replace(each, records=_between(each.records, begin, limit)) for each in rank.segments)
            held = replace(rank, segments=segments)
            self.reduction.add(self._parts.new(held, names_of(held), own=own), source=OWN)

    def exchange(self, at_ns: int, delay: Callable[[], int], *, repeat: bool = False) -> None:
        """Send to the parent. `repeat`: the message arrives twice, which no transport of ours does."""
        parent = self.parent
        assert parent is not None
        arrived_ns = at_ns + delay()
        self.clock.add(
            sent_ns=self.now_ns(at_ns),
            answered_ns=parent.now_ns(arrived_ns),
            received_ns=self.now_ns(arrived_ns + delay()),
        )
        payload = on_clock(self.reduction.take_up(), self.clock.offsets()).tobytes()
        for _ in range(1 + repeat):
            parent.reduction.add(read_entries(payload), source=self.number)
        answer = parent.reduction.take_down(self.number).tobytes()
        self.reduction.deliver(read_results(answer))
        self.traffic.up += len(payload)
        parent.traffic.down += len(answer)

    def _shown(self, rank: RankRecords) -> RankRecords:
        segments = []
        for segment in rank.segments:
            records = segment.records.copy()
            for name in ("start_ns", "end_ns"):
                records[name] = _shown(records[name], ahead_ns=self.ahead_ns, drift=self.drift)
            segments.append(replace(segment, records=records))
        return replace(rank, segments=tuple(segments), info=replace(rank.info, host=self.host))


def _between(records: NDArray[np.void], begin_ns: int, end_ns: int) -> NDArray[np.void]:
    held: NDArray[np.void] = records[(records["end_ns"] >= begin_ns) & (records["end_ns"] < end_ns)]
    return held


class SimulatedJob:
    """All agents of a job; the first is the root."""

    def __init__(self, ranks: Mapping[str, Sequence[RankRecords]], *, rng: random.Random) -> None:
        """`ranks`: host -> its ranks, in true time."""
        self.rng, self.true_ns = rng, 0
        self.agents = {
            name: Agent(
                name,
                each,
                ahead_ns=rng.randrange(10**15),
                drift=rng.uniform(-2e-5, 2e-5),
                true_ns=lambda: self.true_ns,
            )
            for name, each in ranks.items()
        }
        root = next(iter(self.agents.values()))
        self.root, places = root, Places(root.host)
        for agent in self.agents.values():
            if agent is not root:
                agent.parent = self.agents[places.parent_of(agent.host).name]
                agent.number = agent.parent.children.setdefault(agent.host.name, len(agent.parent.children) + 1)

    def run(self, *, seconds: int, silent: Collection[str] = (), repeating: Collection[str] = ()) -> None:
        """Let all agents exchange once per second, each at its own time. `silent`: hosts whose agents send nothing."""
        for second in range(seconds):
            due = sorted((self.rng.randrange(TURN_NS), agent.host.name) for agent in self.agents.values())
            for offset_ns, name in due:
                agent, at_ns = self.agents[name], second * TURN_NS + offset_ns
                self.true_ns = at_ns
                agent.contribute(until_ns=at_ns)
                if agent is self.root:
                    agent.reduction.finish()
                elif name not in silent:
                    agent.exchange(at_ns, self._delay, repeat=name in repeating)

    def _delay(self) -> int:
        return self.rng.randrange(30_000, MAX_DELAY_NS)
