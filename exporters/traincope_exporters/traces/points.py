"""Instants of a rank: values over time, and marks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from traincope.events import Kind
from traincope.timeline import RankTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A finite value from an instant on."""

    name: str
    unit: str
    at_ns: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An instant with a name."""

    name: str
    at_ns: int
    details: Mapping[str, Any]


def values(rank: RankTimeline) -> Iterator[Value]:
    """Memory in bytes by measure, and logged values."""
    for record in rank.of_kind(Kind.MEMORY):
        name = f"memory, {rank.name(int(record['name']))}"
        yield Value(name=name, unit="bytes", at_ns=int(record["start_ns"]), value=int(record["value"]))
    for name, at_ns, value in _logged(rank):
        if isfinite(value):
            yield Value(name=name, unit="value", at_ns=at_ns, value=value)


def marks(rank: RankTimeline, details: Mapping[int, Mapping[str, Any]]) -> Iterator[Mark]:
    """Events with their `details` (by number), and logged values that are not finite."""
    for records in rank.threads.values():
        for record in records[records["kind"] == Kind.EVENT]:
            event_details = details.get(int(record["group"]), {})
            yield Mark(name=rank.name(int(record["name"])), at_ns=int(record["start_ns"]), details=event_details)
    for name, at_ns, value in _logged(rank):
        if not isfinite(value):
            yield Mark(name=f"{name} is {value}", at_ns=at_ns, details={})


def _logged(rank: RankTimeline) -> Iterator[tuple[str, int, float]]:
    records = rank.of_kind(Kind.SCALAR)
    bits = np.ascontiguousarray(records["value"]).view(np.float64)
    columns = zip(records["name"].tolist(), records["start_ns"].tolist(), bits.tolist(), strict=True)
    yield from ((rank.name(number), at_ns, value) for number, at_ns, value in columns)
