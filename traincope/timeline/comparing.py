"""Which collectives' starts and ends compare across their ranks, and how well."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traincope.timeline.numbering import Ints
from traincope.timeline.parts import Bools, Parts
from traincope.timeline.timeline import Timeline

LONG = 1 << 62
NEVER = -LONG
"""Before every instant."""


def lowest(values: Ints | NDArray[np.int32], number: NDArray[np.int32], count: int) -> Ints:
    """The least of the values of each instance."""
    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, number, values)
    return least


def highest(values: Ints | NDArray[np.int32], number: NDArray[np.int32], count: int) -> Ints:
    """The greatest of the values of each instance."""
    return -lowest(-values, number, count)


def clock_errors(
    timeline: Timeline, parts: Parts, number: NDArray[np.int32], *, parts_of: Mapping[int, slice], count: int
) -> tuple[Bools, Ints]:
    """Of each instance, whether it is known how far the clocks of its ranks are from each other, and how far at most.

    Nothing on one host; between two hosts the sum of their bounds at that time, between more of the two largest.
    """
    comparable, error_ns = np.ones(count, dtype=bool), np.zeros(count, dtype=np.int64)
    if len({clock.host for clock in timeline.clocks}) <= 1:
        return comparable, error_ns
    host = host_numbers(timeline, parts)
    bound_ns, known = _bounds(timeline, parts, parts_of)
    comparable[number[~known]] = False
    largest = highest(bound_ns, number, count)
    of = lowest(np.where(bound_ns == largest[number], host, len(host)), number, count)
    others = highest(np.where(host == of[number], -1, bound_ns), number, count)
    several = others >= 0
    return comparable | ~several, np.where(several, largest + others, error_ns)


def leads(timeline: Timeline, parts: Parts, number: NDArray[np.int32], *, count: int) -> Ints:
    """Of each instance, from the latest start on any other host to its latest start; LONG where there is no other."""
    if len({clock.host for clock in timeline.clocks}) <= 1:
        return np.full(count, LONG)
    host = host_numbers(timeline, parts)
    latest = highest(parts.start_ns, number, count)
    of = lowest(np.where(parts.start_ns == latest[number], host, len(host)), number, count)
    others = highest(np.where(host == of[number], NEVER, parts.start_ns), number, count)
    return np.where(others == NEVER, LONG, latest - np.maximum(others, latest - LONG))


def host_numbers(timeline: Timeline, parts: Parts) -> NDArray[np.int32]:
    """The host of each part; all 0 where there is but one."""
    hosts = list(dict.fromkeys(clock.host for clock in timeline.clocks))
    of = np.zeros(max((clock.rank for clock in timeline.clocks), default=0) + 1, dtype=np.int32)
    for clock in timeline.clocks:
        of[clock.rank] = hosts.index(clock.host)
    return of[parts.rank]


def _bounds(timeline: Timeline, parts: Parts, parts_of: Mapping[int, slice]) -> tuple[Ints, Bools]:
    """Of each part's times on the axis, and whether there is one."""
    bound_ns, known = np.zeros(len(parts.rank), dtype=np.int64), np.zeros(len(parts.rank), dtype=bool)
    for clock in timeline.clocks:
        own = parts_of[clock.rank]
        at_start, at_end = clock.bounds_ns(parts.start_ns[own]), clock.bounds_ns(parts.end_ns[own])
        if at_start is not None and at_end is not None:
            bound_ns[own], known[own] = np.maximum(at_start, at_end), True
    return bound_ns, known
