"""A fully recorded run of two ranks, and thinned: without the detail that a recorder with windows would leave out."""

from dataclasses import replace

import numpy as np

from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from traincope.events import BLOCK_STEPS, Flag, Kind, Phase
from traincope.record.session.sampling import is_window
from traincope.timeline import RankTimeline, Timeline

MS = 1_000_000
STEPS = 40 * BLOCK_STEPS
DETAIL = (Kind.COLLECTIVE, Kind.STALL, Kind.ACTION)
"""Kinds of records that light steps lack."""


def recorded(*, seed: int = 0, steps: int = STEPS, data_ns: int = MS, growth: float = 1.5) -> Timeline:
    """Two ranks in lockstep; every step has detail.

    A step waits `data_ns` for its batch. Its forward varies by rank. Its backward computes for 10 to 14 ms, and then
    waits for the other rank and 2 to 4 ms of transfer. After 60 % of the run, computation takes `growth` times as long.
    """
    random = np.random.default_rng(seed)
    rows: tuple[list[Row], list[Row]] = ([], [])
    now = 0
    for number in range(steps):
        longer = growth if number >= 0.6 * steps else 1.0
        forward = [
            int(longer * MS * random.lognormal(np.log(10), 0.2) * (3 if random.random() < 0.02 else 1)) for _ in rows
        ]
        backward = [int(longer * MS * random.uniform(10, 14)) for _ in rows]
        computed = [data_ns + ahead + back for ahead, back in zip(forward, backward, strict=True)]
        end = now + max(computed) + int(MS * random.uniform(2, 4))
        for at, own in enumerate(rows):
            loaded, ahead = now + data_ns, now + data_ns + forward[at]
            reduce = collective(now + computed[at], end, name="all_reduce", sequence=number, at=number, num_bytes=1_000)
            own += [
                step(number, now, end, flags=Flag.DETAILED),
                phase(Phase.DATA_WAIT, now, loaded, at=number),
                phase(Phase.FORWARD, loaded, ahead, at=number),
                phase(Phase.BACKWARD, ahead, end, at=number),
                reduce,
                stall(reduce, now + computed[at], end),
            ]
        now = end
    return timeline(*(rank(at, *own, groups=[group("dp", 0, 1)]) for at, own in enumerate(rows)))


def thin(recording: Timeline, *, run_id: str, halvings: int, first_blocks: int = 1) -> Timeline:
    """Return the timeline that the run would have left with the windows of this id, after so many first ones."""
    ranks = (_thinned(rank, run_id, halvings, first_blocks) for rank in recording.ranks)
    return replace(recording, ranks=tuple(ranks))


def in_window(number: int, *, run_id: str, halvings: int, first_blocks: int = 1) -> bool:
    """Return whether a step has detail. The first step of a window has, but is not sampled."""
    block = number // BLOCK_STEPS
    return block < first_blocks or is_window(block, halvings=halvings, seed=run_id)


def _thinned(rank: RankTimeline, run_id: str, halvings: int, first_blocks: int) -> RankTimeline:
    kept = {
        step.number: in_window(step.number, run_id=run_id, halvings=halvings, first_blocks=first_blocks)
        for step in rank.steps
    }
    sampled = {number for number, is_kept in kept.items() if is_kept and kept.get(number - 1, False)}
    light = np.array([number for number, is_kept in kept.items() if not is_kept], dtype=np.int64)
    threads = {
        name: records[~(np.isin(records["kind"], DETAIL) & np.isin(records["step"], light))]
        for name, records in rank.threads.items()
    }
    steps = tuple(replace(step, detailed=step.number in sampled) for step in rank.steps)
    return replace(rank, threads=threads, steps=steps)
