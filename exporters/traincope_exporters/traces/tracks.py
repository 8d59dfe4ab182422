"""Tracks of a rank: on each track, intervals nest or are apart, as viewers need it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN
from traincope.timeline import RankTimeline
from traincope.timeline.timeline import TRAINING_THREAD
from traincope.topology import axis_order
from traincope_exporters.traces.intervals import collectives, in_thread, lanes, steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Events in order of start, outer ones first; at least one."""

    name: str
    records: NDArray[np.void]
    collective: bool = False


def tracks(rank: RankTimeline) -> Iterator[Track]:
    """Tracks for steps, training thread, device, each axis and other threads. Overlapping intervals get more tracks."""
    yield from _side_by_side(rank, "steps", steps(rank))
    yield from _side_by_side(rank, "training thread", in_thread(rank))
    yield from _side_by_side(rank, "device", in_thread(rank, device=True))
    communication = collectives(rank)
    axes = np.array([rank.axis(number) for number in communication["group"].tolist()], dtype=object)
    for axis in sorted(set(axes.tolist()), key=axis_order):
        yield from _side_by_side(rank, axis, communication[axes == axis], collective=True)
    for name in rank.threads:
        if name != TRAINING_THREAD:
            yield from _side_by_side(rank, name, in_thread(rank, name))


def _side_by_side(
    rank: RankTimeline, name: str, records: NDArray[np.void], *, collective: bool = False
) -> Iterator[Track]:
    ends = np.where(records["end_ns"] == OPEN, rank.last_ns, records["end_ns"])
    lane = np.array(lanes(records["start_ns"].tolist(), ends.tolist()), dtype=np.int64)
    for number in range(int(lane.max(initial=-1)) + 1):
        shown = f"{name} {number + 1}" if number else name
        yield Track(name=shown, records=records[lane == number], collective=collective)
