"""The context computes shared results once, and keeps no slices."""

import weakref

import numpy as np

from tests.timeline.build import Row, collective, group, rank, stall, step, timeline
from traincope.analysis import analyze
from traincope.analysis.context import Context
from traincope.timeline import Timeline

GROUPS = [group("dp", 0, 1)]


def recorded() -> Timeline:
    """Rank 1 begins the all-reduce 70 ns after rank 0; the wire takes 30 ns."""

    def rows(joined_ns: int) -> list[Row]:
        joined = collective(joined_ns, 100)
        return [step(0, 0, 200), joined, stall(joined, joined_ns, 100)]

    return timeline(rank(0, *rows(0), groups=GROUPS), rank(1, *rows(70), groups=GROUPS))


def test_shared_results_are_computed_once() -> None:
    context = analyze(recorded()).context
    assert context.instances is context.instances
    assert context.transfers is context.transfers
    assert (context.transfers.ns.tolist(), context.last.tolist()) == ([30], [1])


def test_slices_split_the_stalls_of_one_rank() -> None:
    context = Context(recorded())
    waits = [context.slices(each)[1].wait_ns.tolist() for each in context.timeline.ranks]
    assert waits == [[70], [0]]


def test_slices_end_at_the_ends_of_windows() -> None:
    context = Context(recorded())
    slices, _ = context.slices(context.timeline.ranks[0], window_ends=np.array([150]))
    assert slices.end_ns.tolist() == [100, 150, 200]


def test_slices_are_not_kept() -> None:
    context = Context(recorded())
    slices, split = context.slices(context.timeline.ranks[0])
    arrays = [weakref.ref(slices.owner), weakref.ref(split.wait_ns)]
    del slices, split
    assert [array() for array in arrays] == [None, None]
