"""Made trainings of many hosts, in true time: groups of all ranks, and of every n-th."""

import random
from collections.abc import Mapping, Sequence

from tests.timeline.build import Row, collective, group, rank, stall
from tests.timeline.build import step as step_of
from traincope.events import Flag
from traincope.store import RankRecords
from traincope.topology import Group

STEP_NS = 500_000_000


def job(
    hosts: int, ranks: int, *, steps: int, rng: random.Random, stride: int, calls: int = 1, with_stalls: bool = False
) -> Mapping[str, Sequence[RankRecords]]:
    """Host -> its ranks. In each step all join collectives, some ranks late; some find them complete when they wait.
    `with_stalls`: with the steps, and a stall for the whole of each collective.
    """
    size = hosts * ranks
    world = group("dp", *range(size), key="world")
    parts = [group("ep", *range(first, size, stride), key=f"part {first}") for first in range(stride)]
    rows: dict[int, list[Row]] = {number: [] for number in range(size)}
    for step in range(steps):
        for call in range(calls):
            _join(rows, world, at=0, sequence=step * calls + call, begin_ns=step * STEP_NS + call * 2_000_000, rng=rng)
        for part in parts:
            _join(rows, part, at=1, sequence=step, begin_ns=step * STEP_NS + 300_000_000, rng=rng)
    if with_stalls:
        for own in rows.values():
            own += [stall(row, row.start_ns, row.end_ns) for row in own]
            own += [step_of(number, number * STEP_NS, (number + 1) * STEP_NS) for number in range(steps)]
    return {
        f"host-{host:04d}": [
            rank(number, *rows[number], groups=(world, parts[number % stride]), boot_id=f"host-{host:04d}")
            for number in range(host * ranks, (host + 1) * ranks)
        ]
        for host in range(hosts)
    }


def _join(rows: dict[int, list[Row]], of: Group, *, at: int, sequence: int, begin_ns: int, rng: random.Random) -> None:
    starts = {member: begin_ns + rng.randrange(1_000_000) for member in of.ranks}
    latest = rng.choice(of.ranks)
    starts[latest] = begin_ns + 30_000_000
    over_ns = max(starts.values()) + rng.randrange(500_000, 1_500_000)
    late_waiter = rng.choice([*of.ranks, None])
    for member in of.ranks:
        bounded = member == late_waiter
        end_ns = over_ns + (rng.randrange(100_000_000, 150_000_000) if bounded else rng.randrange(200_000))
        flags = Flag.DONE_BEFORE_WAIT if bounded else 0
        rows[member].append(
            collective(starts[member], end_ns, name="all_reduce", group=at, sequence=sequence, at=sequence, flags=flags)
        )
