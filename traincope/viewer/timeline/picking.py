"""The span that an address names, and the other ranks' parts of the same collective."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.events import Kind
from traincope.tiles.storage import NOTHING, Row, Tiles

Span = Mapping[str, int]
"""Fields of one `tiles.storage.SPAN_DTYPE` record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """A span and its row."""

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
    """Error bound of the rank's clock; None where it is unknown."""


def spans_of(array: NDArray[np.void]) -> list[Span]:
    """Spans as dicts by field name; repeated look-ups in a dict are faster than in the array."""
    names = array.dtype.names or ()
    return [dict(zip(names, values, strict=True)) for values in array.tolist()]


def pick(span: Span, row: Row) -> str:
    """The address of a span: rank, begin, depth, lane. It stays the same while a run grows."""
    return f"{row.rank}:{span['start_ns']}:{span['depth']}:{row.lane}"


def find(tiles: Tiles, text: str) -> Picked | None:
    """The span that `text` names; None where there is no such span."""
    parts = text.split(":", 3)
    if len(parts) != 4 or not all(part.isdecimal() and len(part) < 20 for part in parts[:3]):
        return None
    rank, start, depth = map(int, parts[:3])
    for row in tiles.header.rows:
        if row.rank == rank and row.lane == parts[3]:
            spans = tiles.spans[row.spans]
            at = int(np.searchsorted(spans["start_ns"], start))
            for number in range(at, len(spans)):
                if spans["start_ns"][number] != start:
                    break
                if spans["depth"][number] == depth:
                    return Picked(span=spans_of(spans[number : number + 1])[0], row=row)
    return None


def parts_of(tiles: Tiles, picked: Picked) -> list[RankPart]:
    """Parts of the ranks in the picked collective; empty where the span is not a matched collective."""
    instance = int(picked.span["instance"])
    if instance == NOTHING:
        return []
    group = tiles.header.groups[picked.span["group"]] if picked.span["group"] >= 0 else None
    members = set(group.ranks) if group else {row.rank for row in tiles.header.rows}
    parts = []
    for row in tiles.header.rows:
        if row.lane == picked.row.lane and row.rank in members:
            spans = tiles.spans[row.spans]
            for span in spans[(spans["instance"] == instance) & (spans["kind"] == Kind.COLLECTIVE)]:
                wait = int(span["wait_ns"])
                parts.append(
                    RankPart(
                        rank=row.rank,
                        start_ns=int(span["start_ns"]),
                        end_ns=int(span["end_ns"]),
                        wait_ns=None if wait == NOTHING else wait,
                        bound_ns=tiles.header.bounds_ns.get(row.rank),
                    )
                )
    return parts
