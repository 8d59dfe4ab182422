"""Clocks: conversion of each rank's monotonic clock to one axis, with the bound of its error.

Ranks of one host (one boot) share the monotonic clock, so their times have no error relative to each other. Wall clocks
align different hosts roughly, without a bound of the error; `alignment` is more exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

import numpy as np

from traincope.arrays import Ints
from traincope.events import Kind
from traincope.store import RankRecords, RunRecords
from traincope.timeline.clocks.offsets import Offsets, errors_over, max_error_over

PPM = 1e6


class ClockSource(StrEnum):
    """How a rank's clock is aligned to the axis. The value is the spelling in JSON."""

    SAME_HOST = "same host"
    """The host's clock is the reference clock."""
    MESSAGES = "messages"
    """Bounded by collectives and messages between the hosts: a rank cannot receive data before it is sent."""
    WALL_CLOCKS = "wall clocks"
    """Aligned by wall clocks only. Their error is not bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """Conversion of a rank's monotonic time to the common axis, the wall time of the lowest rank's host."""

    rank: int
    host: str = ""
    """Ranks of one host share one clock."""
    wall_offset_ns: int = 0
    """Wall time of its host = monotonic time + this."""
    source: ClockSource = ClockSource.SAME_HOST
    corrections: tuple[Offsets, ...] = field(default=(), compare=False)
    """Corrections of that wall time, applied one after the other. Each is between two hosts that share collectives."""

    @property
    def offset_ns(self) -> int:
        """Axis time = monotonic time + this, at the first record of the rank's host."""
        first = self.corrections[0].at_ns[:1] if self.corrections else np.zeros(1, dtype=np.int64)
        return self.wall_offset_ns + int((self.on_axis(first - self.wall_offset_ns) - first)[0])

    @property
    def bound_ns(self) -> int | None:
        """Largest error of its times against the first rank's, at any time of the run; None if unbounded."""
        if self.source is ClockSource.WALL_CLOCKS:
            return None
        return max_error_over(self.corrections)

    @property
    def drift_ppm(self) -> float | None:
        """Rate of the axis relative to this clock, in ppm; positive if the axis is faster. None if unknown."""
        if self.source is ClockSource.WALL_CLOCKS:
            return None
        return PPM * sum(correction.drift_ratio for correction in self.corrections)

    def on_axis(self, times_ns: Ints) -> Ints:
        """Convert monotonic times of the rank to the axis."""
        on_axis = times_ns + self.wall_offset_ns
        for correction in self.corrections:
            on_axis = correction.convert(on_axis)
        return on_axis

    def bounds_ns(self, times_ns: Ints) -> Ints | None:
        """Return the largest error at these instants of the axis; None if unbounded."""
        if self.source is ClockSource.WALL_CLOCKS:
            return None
        return errors_over(self.corrections, times_ns)


def wall_clocks(run: RunRecords) -> dict[int, RankClock]:
    """Compute one offset per host: the median of its (monotonic, wall) pairs, so that one jump has no effect."""
    offsets: dict[str, list[int]] = {}
    for rank in run.ranks:
        offsets.setdefault(host_of(rank), []).extend(_offsets(rank))
    source = ClockSource.SAME_HOST if len(offsets) == 1 else ClockSource.WALL_CLOCKS
    offset_of = {host: int(median(values or [0])) for host, values in offsets.items()}
    return {
        rank.rank: RankClock(rank=rank.rank, host=host_of(rank), wall_offset_ns=offset_of[host_of(rank)], source=source)
        for rank in run.ranks
    }


def host_of(rank: RankRecords) -> str:
    """Return the identity of the rank's host. Ranks of one host share a monotonic clock."""
    return rank.info.host.boot_id or rank.info.host.name


def error_between_ns(clocks: Sequence[RankClock]) -> int | None:
    """Return the largest error between the times of any two of these ranks at any time; None if unbounded."""
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
