"""Conversion of overlapping intervals to nested begins and ends, as of function calls.

If two intervals overlap without nesting, the later one ends when the earlier one ends, and begins again at once. No
time moves.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Edge(NamedTuple):
    """Begin or end of an interval."""

    at_ns: int
    number: int
    """Position of the interval in the input."""
    begins: bool


def balanced(starts_ns: Sequence[int], ends_ns: Sequence[int]) -> Iterator[Edge]:
    """Edges in order of time. The intervals come in order of start, outer ones first."""
    active: list[int] = []
    for number, start in enumerate(starts_ns):
        yield from _end_until(active, ends_ns, start)
        active.append(number)
        yield Edge(start, number, True)
    yield from _end_until(active, ends_ns, max(ends_ns, default=0))


def _end_until(active: list[int], ends_ns: Sequence[int], until_ns: int) -> Iterator[Edge]:
    while active:
        first = min(reversed(active), key=ends_ns.__getitem__)
        at = ends_ns[first]
        if at > until_ns:
            return
        place = active.index(first)
        inside = active[place + 1 :]
        yield from (Edge(at, number, False) for number in (*reversed(inside), first))
        yield from (Edge(at, number, True) for number in inside)
        del active[place]
