"""Evidence about two hosts' clocks: a rank cannot receive data before another rank has sent it.

In an all-reduce, all-gather, reduce-scatter or barrier no rank has the result before every rank has begun; a receiver
does not have a message before its sender has begun. So only two instants of an instance matter on each host: its latest
start and its earliest end. This holds for any late rank, any duration, and any late observation of an end. The bound is
tightest if no rank is late.

The end of a call for a GPU is not the time of completion, so collectives of a job on GPUs give evidence only where
NCCL's own records prove when they ran (`collectives/proved.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import AFTER_ALL_NS, BEFORE_ALL_NS, Ints
from traincope.events import CARRY_NOTHING, RECEIVE_OPERATIONS, SEND_OPERATIONS
from traincope.timeline.clocks.bounds import Evidence
from traincope.timeline.collectives.instances import Instances, match_instances
from traincope.timeline.collectives.proved import proved_collectives
from traincope.timeline.timeline import Timeline

FROM_ALL_TO_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", *CARRY_NOTHING})
"""Operations in which each rank's result needs each rank's part. An all-to-all may send no bytes to some rank."""
NO_DEVICE = "not used"
"""NCCL's version if torch found no GPU."""
OTHER_DEVICES = ("rocm", "xpu", "hpu")
"""Words in the version of a torch build for another kind of device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedInstances:
    """Instances that each host shares with other hosts, in order. Times are on the host's own clock."""

    instance: Mapping[int, Ints]
    """Host -> numbers of instances, ascending. The arrays below have one entry per such instance."""
    latest_start_ns: Mapping[int, Ints]
    """Latest start of parts whose data others need; BEFORE_ALL_NS without such parts."""
    earliest_end_ns: Mapping[int, Ints]
    """Earliest end of parts that need others' data; AFTER_ALL_NS without such parts."""

    def between(self, host: int, other: int) -> Evidence:
        """Return the evidence about the offset from the host's clock to the other's."""
        _, at, other_at = np.intersect1d(
            self.instance[host], self.instance[other], assume_unique=True, return_indices=True
        )
        starts, ends = self.latest_start_ns[host][at], self.earliest_end_ns[host][at]
        others_starts, others_ends = self.latest_start_ns[other][other_at], self.earliest_end_ns[other][other_at]
        needed, needing = (
            (starts != BEFORE_ALL_NS) & (others_ends != AFTER_ALL_NS),
            (ends != AFTER_ALL_NS) & (others_starts != BEFORE_ALL_NS),
        )
        return Evidence(
            upper_at_ns=starts[needed],
            upper_ns=(others_ends - starts)[needed],
            lower_at_ns=ends[needing],
            lower_ns=(others_starts - ends)[needing],
        )

    def neighbours(self, host: int) -> set[int]:
        """Return the hosts that share an instance with this host."""
        shared = np.zeros(max((int(at[-1]) for at in self.instance.values() if len(at)), default=0) + 1, dtype=bool)
        shared[self.instance[host]] = True
        return {other for other, at in self.instance.items() if other != host and shared[at].any()}


def shared_instances(timeline: Timeline, host_of: Mapping[int, int]) -> SharedInstances:
    """Collect the shared instances of all closed collectives. `host_of`: rank -> number of its host."""
    if not waits_on_the_host(timeline.run.info.versions):
        timeline = proved_collectives(timeline)
    instances = match_instances(timeline)
    parts, number = instances.parts, instances.number
    hosts = np.zeros(max(host_of, default=0) + 1, dtype=np.int64)
    hosts[list(host_of)] = list(host_of.values())
    host = hosts[parts.rank]
    provides, needs = _provides_and_needs(instances)
    crossing = (provides | needs) & (_on_several(number, host, count=len(instances)) & instances.consistent)[number]
    codes = number[crossing].astype(np.int64) * len(hosts) + host[crossing]
    distinct, place = np.unique(codes, return_inverse=True)
    starts = np.full(len(distinct), BEFORE_ALL_NS)
    ends = np.full(len(distinct), AFTER_ALL_NS)
    np.maximum.at(starts, place[provides[crossing]], parts.start_ns[crossing & provides])
    np.minimum.at(ends, place[needs[crossing]], parts.end_ns[crossing & needs])
    instance, of = np.divmod(distinct, len(hosts))
    each = {key: of == key for key in sorted(set(host_of.values()))}
    return SharedInstances(
        instance={key: instance[chosen] for key, chosen in each.items()},
        latest_start_ns={key: starts[chosen] for key, chosen in each.items()},
        earliest_end_ns={key: ends[chosen] for key, chosen in each.items()},
    )


def waits_on_the_host(versions: Mapping[str, str]) -> bool:
    """Return whether waits block the host: torch has no device on which a wait only queues, by the run's `versions`."""
    on_cuda = "cuda" in versions and versions.get("nccl") != NO_DEVICE
    return not on_cuda and not any(name in versions.get("torch", "") for name in OTHER_DEVICES)


def _on_several(number: NDArray[np.int32], host: Ints, *, count: int) -> NDArray[np.bool_]:
    """Mark the instances with ranks of several hosts."""
    lowest, highest = np.full(count, AFTER_ALL_NS), np.full(count, BEFORE_ALL_NS)
    np.minimum.at(lowest, number, host)
    np.maximum.at(highest, number, host)
    return np.asarray(lowest < highest)


def _provides_and_needs(instances: Instances) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Mark parts whose start precedes the others' ends, and parts whose end follows the others' starts."""
    parts, names = instances.parts, instances.operations
    bytes_needed = ~_any_of(names, CARRY_NOTHING)[parts.operation_code]
    counts = (parts.num_bytes > 0) | ~bytes_needed
    symmetric = _any_of(names, FROM_ALL_TO_ALL)[parts.operation_code]
    sends, receives = (_any_of(names, key)[parts.operation_code] for key in (SEND_OPERATIONS, RECEIVE_OPERATIONS))
    return counts & (symmetric | sends), counts & (symmetric | receives)


def _any_of(names: Sequence[str], chosen: frozenset[str]) -> NDArray[np.bool_]:
    return np.array([name in chosen for name in names], dtype=bool)
