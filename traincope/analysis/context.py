"""Results that several analyses of one timeline share: matched collectives, time on the wire, last rank to arrive.

The context computes each result when it is first read, and keeps it. It computes the slices of a rank's training thread
at every call and does not keep them: those of all ranks are as large as the events.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from traincope.analysis.attribution.stalls import StallSplit, split_stalls
from traincope.analysis.attribution.thread_slices import ThreadSlices, slice_thread
from traincope.analysis.attribution.transfers import Transfers, transfers
from traincope.arrays import Ints
from traincope.timeline import Instances, RankTimeline, Timeline, match_instances
from traincope.timeline.collectives.comparing import lowest
from traincope.timeline.device import collectives_on_streams, on_device

NO_WINDOWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Context:
    """A timeline and the results that its analyses share."""

    timeline: Timeline
    members: Timeline | None = None
    """The same ranks with ranks of other hosts, by copies of their collectives: they complete groups that span hosts.
    None: the timeline has all that is known.
    """
    part: Timeline | None = None
    """`measured` of a part of a run; None: the timeline is a whole run."""
    matched: Instances | None = None
    """`instances`, if they are matched already."""

    @cached_property
    def measured(self) -> Timeline:
        """The timeline that the ledger measures: of the GPUs, if marks show them, otherwise of the hosts."""
        return on_device(self.timeline) if self.part is None else self.part

    @cached_property
    def on_streams(self) -> "Context":
        """The collectives that marks on compute streams measured; the context itself without marks."""
        return Context(collectives_on_streams(self.measured)) if self.measured.by_marks else self

    @cached_property
    def instances(self) -> Instances:
        """The collectives of all ranks, matched with those of other hosts."""
        return match_instances(self.members or self.timeline) if self.matched is None else self.matched

    @cached_property
    def own_instances(self) -> Instances:
        """The collectives of the timeline's ranks, matched among them."""
        return self.instances if self.members is None else match_instances(self.timeline)

    @cached_property
    def transfers(self) -> Transfers:
        """Time on the wire of each instance."""
        return transfers(self.members or self.timeline, self.instances)

    @cached_property
    def last(self) -> Ints:
        """The rank that joined each instance last."""
        return last_to_arrive(self.instances)

    def slices(self, rank: RankTimeline, *, window_ends: Ints = NO_WINDOWS) -> tuple[ThreadSlices, StallSplit]:
        """Slice the rank's training thread by owner, and split its stalls into wait and transfer.

        No slice crosses one of `window_ends` (ns). A stall that marks measured belongs to one of the instances of
        `on_streams`.
        """
        slices = slice_thread(rank, window_ends=window_ends)
        instances = self.on_streams.instances if rank.on_device else self.instances
        return slices, split_stalls(rank, slices, instances=instances)


def last_to_arrive(instances: Instances) -> Ints:
    """Find the rank that joined each instance last (the lowest of equal ranks); -1 if unknown.

    It is the rank with the latest start, if the clocks' error cannot make another host's start the latest. Otherwise
    it is the rank with the shortest part, because the last rank does not wait. Parts whose ranks waited for them late
    do not give this evidence.
    """
    by_start = _first_by(-instances.parts.start_ns, instances)
    by_duration = np.where(instances.by_clock, -1, _first_by(instances.parts.duration_ns, instances))
    return np.where(instances.complete, np.where(instances.starts_compare, by_start, by_duration), -1)


def _first_by(values_ns: Ints, instances: Instances) -> Ints:
    """Return, for each instance, the rank of the part with the smallest value."""
    number, count = instances.number, len(instances)
    at_lowest = np.flatnonzero(values_ns == lowest(values_ns, number, count)[number])
    return lowest(instances.parts.rank[at_lowest], number[at_lowest], count)
