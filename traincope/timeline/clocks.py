"""Rank-local monotonic clocks -> one axis, with the error that this may have.

Ranks of one host (one boot) share the monotonic clock, so between them nothing is lost. Hosts are
put roughly together by their wall clocks, whose error nothing bounds; `alignment` does it better.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

import numpy as np

from traincope.events import Kind
from traincope.store import RankRecords, RunRecords
from traincope.timeline.offsets import Ints, Offsets, bounds_over, worst_over

PPM = 1e6


class ClockSource(StrEnum):
    """What ties a rank's clock to the axis; the value is what JSON says."""

    SAME_HOST = "same host"
    """It is the clock that all times are told by."""
    MESSAGES = "messages"
    """Collectives and messages between the hosts: nobody has received what was not sent."""
    WALL_CLOCKS = "wall clocks"
    """Nothing else, and they can be wrong by any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """How a rank's monotonic time maps to the common axis: the wall time of the host of the lowest rank."""

    rank: int
    host: str = ""
    """Ranks of one host have one clock."""
    wall_offset_ns: int = 0
    """Wall time of its host = monotonic time + this."""
    source: ClockSource = ClockSource.SAME_HOST
    corrections: tuple[Offsets, ...] = field(default=(), compare=False)
    """Of that wall time, one after the other: each is between two hosts that met."""

    @property
    def offset_ns(self) -> int:
        """Axis time = monotonic time + this, at the first of the rank's host's records."""
        first = self.corrections[0].at_ns[:1] if self.corrections else np.zeros(1, dtype=np.int64)
        return self.wall_offset_ns + int((self.on_axis(first - self.wall_offset_ns) - first)[0])

    @property
    def bound_ns(self) -> int | None:
        """Largest error of its times on the axis at any time of the run; None where nothing bounds it."""
        if self.source is ClockSource.WALL_CLOCKS:
            return None
        return worst_over(self.corrections)

    @property
    def drift_ppm(self) -> float | None:
        """By how much the axis runs faster than this clock; None where that is not known."""
        if self.source is ClockSource.WALL_CLOCKS:
            return None
        return PPM * sum(one.drift_ratio for one in self.corrections)

    def on_axis(self, times_ns: Ints) -> Ints:
        """Monotonic times of the rank, on the axis."""
        on_axis = times_ns + self.wall_offset_ns
        for one in self.corrections:
            on_axis = one.convert(on_axis)
        return on_axis

    def bounds_ns(self, times_ns: Ints) -> Ints | None:
        """Largest error at these instants of the axis."""
        if self.source is ClockSource.WALL_CLOCKS:
            return None
        return bounds_over(self.corrections, times_ns)


def wall_clocks(run: RunRecords) -> dict[int, RankClock]:
    """One offset a host, the median over all (monotonic, wall) pairs its ranks wrote: one jump does not move it."""
    offsets: dict[str, list[int]] = {}
    for rank in run.ranks:
        offsets.setdefault(host_of(rank), []).extend(_offsets(rank))
    source = ClockSource.SAME_HOST if len(offsets) == 1 else ClockSource.WALL_CLOCKS
    offset_of = {host: int(median(seen or [0])) for host, seen in offsets.items()}
    return {
        rank.rank: RankClock(rank=rank.rank, host=host_of(rank), wall_offset_ns=offset_of[host_of(rank)], source=source)
        for rank in run.ranks
    }


def host_of(rank: RankRecords) -> str:
    """Ranks with the same share a monotonic clock."""
    return rank.info.host.boot_id or rank.info.host.name


def error_between_ns(clocks: Sequence[RankClock]) -> int | None:
    """How far the times of any two of these ranks can be from each other's, at any time; None where nothing says so."""
    worst: dict[str, int] = {}
    if len({clock.host for clock in clocks}) <= 1:
        return 0
    for clock in clocks:
        bound_ns = clock.bound_ns
        if bound_ns is None:
            return None
        worst[clock.host] = bound_ns
    return sum(sorted(worst.values())[-2:])


def _offsets(rank: RankRecords) -> list[int]:
    pairs = [segment.records[segment.records["kind"] == Kind.CLOCK] for segment in rank.segments]
    return [int(offset) for pair in pairs for offset in np.asarray(pair["value"] - pair["start_ns"])]
