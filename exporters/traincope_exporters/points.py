"""What a rank recorded of single instants: values over time, and events."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from traincope.events import Kind
from traincope.timeline import RankTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What something was from an instant on; finite."""

    name: str
    unit: str
    at_ns: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened."""

    name: str
    at_ns: int
    details: Mapping[str, Any]


def values(rank: RankTimeline) -> Iterator[Value]:
    """Memory in bytes, by measure, and what the training logged."""
    for record in rank.of_kind(Kind.MEMORY):
        name = f"memory, {rank.name(int(record['name']))}"
        yield Value(name=name, unit="bytes", at_ns=int(record["start_ns"]), value=int(record["value"]))
    for name, at_ns, value in _logged(rank):
        if isfinite(value):
            yield Value(name=name, unit="value", at_ns=at_ns, value=value)


def marks(rank: RankTimeline, details: Mapping[int, Mapping[str, Any]]) -> Iterator[Mark]:
    """Its events with what they carry (`details` by number), and logged values that are no numbers."""
    for records in rank.threads.values():
        for record in records[records["kind"] == Kind.EVENT]:
            told = details.get(int(record["group"]), {})
            yield Mark(name=rank.name(int(record["name"])), at_ns=int(record["start_ns"]), details=told)
    for name, at_ns, value in _logged(rank):
        if not isfinite(value):
            yield Mark(name=f"{name} is {value}", at_ns=at_ns, details={})


def _logged(rank: RankTimeline) -> Iterator[tuple[str, int, float]]:
    records = rank.of_kind(Kind.SCALAR)
    bits = np.ascontiguousarray(records["value"]).view(np.float64)
    columns = zip(records["name"].tolist(), records["start_ns"].tolist(), bits.tolist(), strict=True)
    yield from ((rank.name(number), at_ns, value) for number, at_ns, value in columns)
