"""Rank-local monotonic clocks -> one axis, with the error that this may have.

Ranks of one host (one boot) share the monotonic clock, so between them nothing is lost. Between
hosts only the wall clocks tie them together, and nothing recorded bounds how far those are apart.
"""

from dataclasses import dataclass
from statistics import median

import numpy as np

from traincope.events import Kind
from traincope.store import RankRecords, RunRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """How a rank's monotonic time maps to the common axis, which is wall time since the epoch."""

    rank: int
    offset_ns: int
    """Axis time = monotonic time + offset."""
    bound_ns: int | None
    """Largest error against the other ranks; None where nothing bounds it."""


def align(run: RunRecords) -> dict[int, RankClock]:
    """One offset a host, the median over all (monotonic, wall) pairs its ranks wrote."""
    offsets: dict[str, list[int]] = {}
    for rank in run.ranks:
        offsets.setdefault(_host(rank), []).extend(_offsets(rank))
    bound = 0 if len(offsets) == 1 else None
    offset_of = {host: int(median(seen or [0])) for host, seen in offsets.items()}
    return {
        rank.rank: RankClock(rank=rank.rank, offset_ns=offset_of[_host(rank)], bound_ns=bound) for rank in run.ranks
    }


def _host(rank: RankRecords) -> str:
    return rank.info.host.boot_id or rank.info.host.name


def _offsets(rank: RankRecords) -> list[int]:
    pairs = [segment.records[segment.records["kind"] == Kind.CLOCK] for segment in rank.segments]
    return [int(offset) for pair in pairs for offset in np.asarray(pair["value"] - pair["start_ns"])]
