"""The cost of the tree of agents per host: bytes and CPU time, of simulated jobs.

    python -m benchmarks.tree [--hosts 256 2000] [--calls 100]

Real reductions of all agents take turns in one process. Each host has one rank, which joins collectives of all ranks
and of a group of every 50th host. CPU time is that of summing up, merging and passing on; sealing and sending the bytes
come on top.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from time import thread_time

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tests.live.tree.simulated import TURN_NS, Agent, SimulatedJob
from tests.timeline.build import collective, group, rank
from traincope.live.tree.entries import names_of
from traincope.store import RankRecords
from traincope.timeline.collectives.elsewhere import identities
from traincope.timeline.intervals.numbering import UNKNOWN
from traincope.topology import Group

SECONDS, WARM_SECONDS = 12, 6
"""Simulated time, and that of it which is not counted: the first results are on their way."""
EVERY = 50


def job(hosts: int, *, calls: int) -> Mapping[str, Sequence[RankRecords]]:
    """Host -> its rank, with so many collectives per second, one in ten in the smaller group."""
    rng = np.random.default_rng(1)
    world = group("dp", *range(hosts), key="world")
    parts = [group("ep", *range(first, hosts, EVERY), key=f"part {first}") for first in range(EVERY)]
    count = SECONDS * calls
    begins = np.arange(count) * (TURN_NS // calls)
    small = np.arange(count) % 10 == 0
    template = rank(0, collective(0, 1, name="all_reduce"))
    (segment,) = template.segments
    made = {}
    for number in range(hosts):
        records = np.repeat(segment.records, count)
        records["start_ns"] = begins + rng.integers(0, 1_000_000, count)
        records["end_ns"] = begins + 2_000_000 + rng.integers(0, 100_000, count)
        records["group"] = small
        records["sequence"] = np.where(small, np.cumsum(small), np.cumsum(~small)) - 1
        made[f"host-{number:05d}"] = [_with(number, template, records, (world, parts[number % EVERY]))]
    return made


def _with(number: int, template: RankRecords, records: NDArray[np.void], groups: tuple[Group, ...]) -> RankRecords:
    named = rank(number, collective(0, 1, name="all_reduce"), groups=groups, boot_id=f"host-{number:05d}")
    return replace(named, segments=(replace(template.segments[0], records=records),))


class Measured(SimulatedJob):
    """A job that counts the CPU time of each agent."""

    def measure(self) -> dict[str, float]:
        """Host -> CPU seconds per second."""
        spent: dict[str, float] = defaultdict(float)
        for second in range(SECONDS):
            if second == WARM_SECONDS:
                spent.clear()
                for agent in self.agents.values():
                    agent.traffic.up = agent.traffic.down = 0
            due = sorted((self.rng.randrange(TURN_NS), name) for name in self.agents)
            for offset_ns, name in due:
                agent, at_ns = self.agents[name], second * TURN_NS + offset_ns
                self._turn(agent, at_ns, spent)
        return {name: seconds / (SECONDS - WARM_SECONDS) for name, seconds in spent.items()}

    def _turn(self, agent: Agent, at_ns: int, spent: dict[str, float]) -> None:
        """A child's exchange is its own work; taking it is the parent's, and is measured with the child's."""
        began, self.true_ns = thread_time(), at_ns
        agent.contribute(until_ns=at_ns, since_ns=at_ns - 5 * TURN_NS)
        if agent is self.root:
            agent.reduction.finish()
        else:
            agent.exchange(at_ns, self._delay)
        spent[agent.host.name] += thread_time() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="the cost of the tree of agents")
    parser.add_argument("--hosts", type=int, nargs="+", default=(256, 2_000))
    parser.add_argument("--calls", type=int, default=100, help="collectives per rank and second that span hosts")
    options = parser.parse_args()
    table = Table("hosts", "sent up, KiB/s", "most", "sent down, KiB/s", "most", "CPU, ms/s", "most", "split")
    for column in table.columns:
        column.justify = "right"
    for hosts in options.hosts:
        simulated = Measured(job(hosts, calls=options.calls), rng=random.Random(1))
        spent = list(simulated.measure().values())
        seconds = SECONDS - WARM_SECONDS
        up = [agent.traffic.up / seconds / 1024 for agent in simulated.agents.values()]
        down = [agent.traffic.down / seconds / 1024 for agent in simulated.agents.values()]
        share = mean(_split(agent, calls=options.calls) for agent in simulated.agents.values())
        cpu = [1e3 * each for each in spent]
        values = (mean(up), max(up), mean(down), max(down), mean(cpu), max(cpu))
        table.add_row(str(hosts), *(f"{value:,.1f}" for value in values), f"{100 * share:.1f} %")
    Console(width=120).print(table)


def _split(agent: Agent, *, calls: int) -> float:
    """Share of the collectives of the first seconds whose result the agent has."""
    (records,) = (segment.records for segment in agent.ranks[0].segments)
    early = records[: calls * WARM_SECONDS // 2]
    found = agent.known.elsewhere().find(identities(early, names_of(agent.ranks[0])))
    return float((found != UNKNOWN).mean())


if __name__ == "__main__":
    main()
