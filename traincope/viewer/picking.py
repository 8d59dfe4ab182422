"""A span as the address names it, and the parts that other ranks had in the same collective."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.events import Kind
from traincope.store.tiles import NOTHING, Row, Tiles

Span = Mapping[str, int]
"""One of `store.tiles.SPAN_DTYPE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """One span, and where it lies."""

    span: Span
    row: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """A rank's part in a collective, ns since the tiles' origin."""

    rank: int
    start_ns: int
    end_ns: int
    wait_ns: int | None
    bound_ns: int | None
    """Of the rank's clock; None where nothing bounds it."""


def spans_of(array: NDArray[np.void]) -> list[Span]:
    """Each by its fields' names: looked up a dozen times, they are found sooner than in the array."""
    names = array.dtype.names or ()
    return [dict(zip(names, values, strict=True)) for values in array.tolist()]


def pick(span: Span, row: Row) -> str:
    """Stays the same while a run grows: rank, begin, depth, lane."""
    return f"{row.rank}:{span['start_ns']}:{span['depth']}:{row.lane}"


def find(tiles: Tiles, text: str) -> Picked | None:
    """None where it names no span."""
    parts = text.split(":", 3)
    if len(parts) != 4 or not all(part.isdecimal() and len(part) < 20 for part in parts[:3]):
        return None
    rank, start, depth = map(int, parts[:3])
    for row in tiles.header.rows:
        if row.rank == rank and row.lane == parts[3]:
            own = tiles.spans[row.spans]
            at = int(np.searchsorted(own["start_ns"], start))
            for number in range(at, len(own)):
                if own["start_ns"][number] != start:
                    break
                if own["depth"][number] == depth:
                    return Picked(span=spans_of(own[number : number + 1])[0], row=row)
    return None


def parts_of(tiles: Tiles, picked: Picked) -> list[RankPart]:
    """By rank; empty where the span is no collective that was matched."""
    instance = int(picked.span["instance"])
    if instance == NOTHING:
        return []
    group = tiles.header.groups[picked.span["group"]] if picked.span["group"] >= 0 else None
    members = set(group.ranks) if group else {row.rank for row in tiles.header.rows}
    found = []
    for row in tiles.header.rows:
        if row.lane == picked.row.lane and row.rank in members:
            own = tiles.spans[row.spans]
            for span in own[(own["instance"] == instance) & (own["kind"] == Kind.COLLECTIVE)]:
                wait = int(span["wait_ns"])
                found.append(
                    RankPart(
                        rank=row.rank,
                        start_ns=int(span["start_ns"]),
                        end_ns=int(span["end_ns"]),
                        wait_ns=None if wait == NOTHING else wait,
                        bound_ns=tiles.header.bounds_ns.get(row.rank),
                    )
                )
    return found
