"""Latency and bandwidth of an axis' collectives, fitted on the sizes of the messages that a run sent.

A ring of n ranks takes k (n - 1) steps, and sends k (n - 1) / n of the bytes; k is 2 for an all-reduce and 1 for half
of it: Patarasuk and Yuan 2009, JPDC 69(2), section 3. With one size only, no fit can separate latency from bandwidth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.arrays import Floats
from traincope.plan.layout.bus import bus_factor, ring_passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Equal messages of one operation."""

    operation: str
    count: int
    num_bytes: float
    """Bytes of one message."""
    seconds: float
    """Time of one on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLaw:
    """Seconds = latency x steps + bytes on the wire / rate."""

    latency_seconds: float
    """Time of one step of the ring."""
    seconds_per_byte: float
    num_sizes: int
    """Sizes that the fit rests on."""

    def seconds(self, operation: str, *, num_bytes: float, ranks: int) -> float:
        """Time of one collective in a group of `ranks` ranks."""
        steps = ring_passes(operation) * (ranks - 1)
        return self.latency_seconds * steps + self.seconds_per_byte * num_bytes * bus_factor(operation, ranks)


def sent_messages(rows: Sequence[AxisOperation], axis: str) -> tuple[Messages, ...]:
    """Messages of an axis by operation and size. Sizes are the bytes of the operation's mean message in its range."""
    found = []
    for row in rows:
        if row.axis != axis or not row.num_bytes:
            continue
        largest = sum(size.count * size.max_bytes for size in row.sizes)
        for size in row.sizes:
            if size.count and size.transfer_ns:
                num_bytes = size.max_bytes * row.num_bytes / largest
                seconds = size.transfer_ns / size.count / 1e9
                found.append(Messages(operation=row.operation, count=size.count, num_bytes=num_bytes, seconds=seconds))
    return tuple(found)


def link_laws(messages: Sequence[Messages], *, ranks: int) -> tuple[LinkLaw, ...]:
    """The fitted law; two laws, of latency alone and of bandwidth alone, where all messages have one size.

    Least squares of relative errors, both parameters at least 0. Empty without messages or with one rank.
    """
    if not messages or ranks < 2:
        return ()
    steps = np.array([ring_passes(each.operation) * (ranks - 1) for each in messages], dtype=float)
    wire = np.array([each.num_bytes * bus_factor(each.operation, ranks) for each in messages])
    seconds = np.array([each.seconds for each in messages])
    weights = np.sqrt([each.count for each in messages]) / seconds
    num_sizes = len({round(float(each), 3) for each in wire / steps})

    def alone(column: Floats) -> float:
        return float((weights * column) @ (weights * seconds) / ((weights * column) @ (weights * column)))

    latency_only = LinkLaw(latency_seconds=alone(steps), seconds_per_byte=0.0, num_sizes=num_sizes)
    rate_only = LinkLaw(latency_seconds=0.0, seconds_per_byte=alone(wire), num_sizes=num_sizes)
    if num_sizes < 2:
        return latency_only, rate_only
    matrix = np.stack([steps, wire], axis=1) * weights[:, None]
    (latency, per_byte), *_ = np.linalg.lstsq(matrix, weights * seconds, rcond=None)
    if latency < 0:
        return (rate_only,)
    if per_byte < 0:
        return (latency_only,)
    return (LinkLaw(latency_seconds=float(latency), seconds_per_byte=float(per_byte), num_sizes=num_sizes),)
