"""Thin a fully recorded run: remove the detail that a recorder with windows would not have recorded."""

from dataclasses import replace

import numpy as np

from traincope.events import BLOCK_STEPS, Kind
from traincope.record.session.sampling import is_window
from traincope.timeline import RankTimeline, Timeline

DETAIL = (Kind.COLLECTIVE, Kind.STALL, Kind.ACTION)
"""Kinds of records that light steps lack."""


def thin(timeline: Timeline, *, run_id: str, halvings: int) -> Timeline:
    """Return the timeline that the run would have left with the windows of this id. The first block is always one."""
    return replace(timeline, ranks=tuple(_thinned(rank, run_id, halvings) for rank in timeline.ranks))


def in_window(number: int, *, run_id: str, halvings: int) -> bool:
    """Return whether a step has detail. The first step of a window has, but is not sampled."""
    block = number // BLOCK_STEPS
    return block == 0 or is_window(block, halvings=halvings, seed=run_id)


def _thinned(rank: RankTimeline, run_id: str, halvings: int) -> RankTimeline:
    recorded = {step.number: in_window(step.number, run_id=run_id, halvings=halvings) for step in rank.steps}
    sampled = {number for number, kept in recorded.items() if kept and recorded.get(number - 1, False)}
    light = np.array([number for number, kept in recorded.items() if not kept], dtype=np.int64)
    threads = {
        name: records[~(np.isin(records["kind"], DETAIL) & np.isin(records["step"], light))]
        for name, records in rank.threads.items()
    }
    steps = tuple(replace(step, detailed=step.number in sampled) for step in rank.steps)
    return replace(rank, threads=threads, steps=steps)
