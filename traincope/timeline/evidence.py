"""What two hosts' records say of their clocks: nobody has received what was not sent yet.

Of an all-reduce, all-gather, reduce-scatter or barrier no rank has the result before every rank has
begun; of a message, not the receiver before the sender. So on each host only two instants of an
instance matter: the latest start there, and the earliest end. That holds whoever was late, however
long it took, and however late an end was seen; where nobody is late, it binds most.

Of work that was queued on a GPU the end that the host saw is not when it was complete, so that
collectives of a job on GPUs say nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.events import RECEIVE_OPERATIONS, SEND_OPERATIONS
from traincope.timeline.bounds import Evidence
from traincope.timeline.instances import Instances, match_instances
from traincope.timeline.numbering import Ints
from traincope.timeline.timeline import Timeline

FROM_ALL_TO_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
"""Each rank's result needs each rank's part. An all-to-all may send nothing to somebody."""
CARRY_NOTHING = frozenset({"barrier"})
"""Operations that synchronise without bytes; others without bytes may return at once."""
NO_DEVICE = "not used"
"""NCCL's version, where torch found no GPU."""
OTHER_DEVICES = ("rocm", "xpu", "hpu")
"""Parts of the version of a torch for one of these."""
NEVER, ALWAYS = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meetings:
    """Of each host, the instances that ranks elsewhere took part in too, in order; times on the host's own clock."""

    instance: Mapping[int, Ints]
    """Host -> numbers of instances, rising; the entries of the others are its."""
    latest_start_ns: Mapping[int, Ints]
    """Of what others waited for; NEVER where it gave nothing."""
    earliest_end_ns: Mapping[int, Ints]
    """Of what needed the others; ALWAYS where it needed nothing."""

    def between(self, own: int, other: int) -> Evidence:
        """Of the offset that leads from the own host's clock to the other's."""
        _, at, there = np.intersect1d(self.instance[own], self.instance[other], assume_unique=True, return_indices=True)
        starts, ends = self.latest_start_ns[own][at], self.earliest_end_ns[own][at]
        others_starts, others_ends = self.latest_start_ns[other][there], self.earliest_end_ns[other][there]
        needed, needing = (starts != NEVER) & (others_ends != ALWAYS), (ends != ALWAYS) & (others_starts != NEVER)
        return Evidence(
            most_at_ns=starts[needed],
            most_ns=(others_ends - starts)[needed],
            least_at_ns=ends[needing],
            least_ns=(others_starts - ends)[needing],
        )

    def neighbours(self, host: int) -> set[int]:
        """The hosts that it has met."""
        shared = np.zeros(max((int(at[-1]) for at in self.instance.values() if len(at)), default=0) + 1, dtype=bool)
        shared[self.instance[host]] = True
        return {other for other, at in self.instance.items() if other != host and shared[at].any()}


def meetings(timeline: Timeline, host_of: Mapping[int, int]) -> Meetings:
    """Of all closed collectives. `host_of`: rank -> number of its host."""
    instances = match_instances(timeline)
    parts, number = instances.parts, instances.number
    hosts = np.zeros(max(host_of, default=0) + 1, dtype=np.int64)
    hosts[list(host_of)] = list(host_of.values())
    host = hosts[parts.rank]
    gives, takes = _gives_and_takes(instances, told=waits_on_the_host(timeline.run.info.versions))
    met = (gives | takes) & (_on_several(number, host, count=len(instances)) & instances.alike)[number]
    codes = number[met].astype(np.int64) * len(hosts) + host[met]
    distinct, place = np.unique(codes, return_inverse=True)
    starts = np.full(len(distinct), NEVER)
    ends = np.full(len(distinct), ALWAYS)
    np.maximum.at(starts, place[gives[met]], parts.start_ns[met & gives])
    np.minimum.at(ends, place[takes[met]], parts.end_ns[met & takes])
    instance, of = np.divmod(distinct, len(hosts))
    each = {one: of == one for one in sorted(set(host_of.values()))}
    return Meetings(
        instance={one: instance[chosen] for one, chosen in each.items()},
        latest_start_ns={one: starts[chosen] for one, chosen in each.items()},
        earliest_end_ns={one: ends[chosen] for one, chosen in each.items()},
    )


def waits_on_the_host(versions: Mapping[str, str]) -> bool:
    """Whether this torch had no device on which a wait only queues; by `versions` of the run."""
    on_cuda = "cuda" in versions and versions.get("nccl") != NO_DEVICE
    return not on_cuda and not any(name in versions.get("torch", "") for name in OTHER_DEVICES)


def _on_several(number: NDArray[np.int32], host: Ints, *, count: int) -> NDArray[np.bool_]:
    """Instances that ranks of several hosts took part in."""
    lowest, highest = np.full(count, ALWAYS), np.full(count, NEVER)
    np.minimum.at(lowest, number, host)
    np.maximum.at(highest, number, host)
    return np.asarray(lowest < highest)


def _gives_and_takes(instances: Instances, *, told: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether others could not end before a part's start, and whether it could not end before others' start."""
    parts, names = instances.parts, instances.operations
    bytes_needed = ~_any_of(names, CARRY_NOTHING)[parts.operation_code]
    counts = told & ((parts.num_bytes > 0) | ~bytes_needed)
    symmetric = _any_of(names, FROM_ALL_TO_ALL)[parts.operation_code]
    sends, receives = (_any_of(names, one)[parts.operation_code] for one in (SEND_OPERATIONS, RECEIVE_OPERATIONS))
    return counts & (symmetric | sends), counts & (symmetric | receives)


def _any_of(names: Sequence[str], chosen: frozenset[str]) -> NDArray[np.bool_]:
    return np.array([name in chosen for name in names], dtype=bool)
