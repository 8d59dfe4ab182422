"""Devices and links of a job, and the time that a rank's collectives take on them.

A group within the link domain (NVLink and the like) uses its links. A larger group also crosses the network, within the
switches of one pod (rail) or over the spine. Each algorithm takes latency x steps + bytes / rate:

    ring        k (n - 1) steps and k (n - 1) / n of the bytes, k = 2 for an all-reduce and 1 for half of it
    tree        2 log2 n steps and twice the bytes, for an all-reduce only
    direct      one step: messages, and exchanges whose shares for other domains leave over the network

Patarasuk and Yuan 2009, JPDC 69(2), section 3 (ring); Sanders et al. 2009, Parallel Computing 35(12) (trees).
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log2

from traincope.errors import UsageError
from traincope.plan.layout.bus import ring_passes
from traincope.plan.layout.communication import Volume
from traincope.plan.layout.kernels import Kernels, uniform

SIXTY_PERCENT = uniform(0.6)


class Tier(StrEnum):
    """Slowest links that a group's ring crosses, fastest first."""

    DOMAIN = "domain"
    RAIL = "rail"
    SPINE = "spine"


class Algorithm(StrEnum):
    RING = "ring"
    TREE = "tree"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A device's share of the CPU, its memory, and local disks."""

    link_bytes_per_second: float
    """Rate between the device and the CPU's memory, in one direction."""
    memory_bytes: int
    memory_bytes_per_second: float
    nvme_bytes: int
    nvme_bytes_per_second: float
    """Rate at which disks read, and at which they write."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Devices and links of the job. Raises UsageError for impossible values."""

    peak_flops: float
    """Dense FLOP/s of one device."""
    memory_bytes: int
    """Memory of one device."""
    workspace_bytes: int = 0
    """Part of it that the library of matrix products keeps."""
    ranks_per_node: int = 8
    """Ranks of one link domain."""
    node_bytes_per_second: float
    """Rate at which a rank sends to ranks of its node, in one direction."""
    pair_bytes_per_second: float | None = None
    """Rate at which a rank sends to one rank of its node. None: as to all of them together, through a switch."""
    torus: bool = False
    """Links of a node form a torus. Otherwise each rank has a link to each other one."""
    network_bytes_per_second: float
    """Rate at which a rank sends to other nodes, in one direction."""
    ring_bytes_per_second: float | None = None
    """Most that one ring between nodes reaches. None: as much as its ranks of a node together."""
    kernels: Kernels = SIXTY_PERCENT
    """Rates that kernels reach."""
    memory_bytes_per_second: float | None = None
    """Bandwidth of the device's memory. None: operators besides matrix products take no time of their own."""
    link_share: float = 1.0
    """Share of the domain's links' rates that collectives reach."""
    network_share: float = 1.0
    """Share of the network's rate that collectives reach."""
    node_latency_seconds: float = 0.0
    """Time of one step of a collective within a node."""
    network_latency_seconds: float = 0.0
    """Time of one step of a collective between nodes."""
    pod_ranks: int | None = None
    """Ranks that reach each other without the spine. None: all."""
    spine_share: float = 1.0
    """Rate over the spine, relative to the network's: 0.5 for an oversubscription of 2 : 1."""

    streams: bool = True
    """Collectives run on streams of their own, next to compute. A CPU has no streams, and waits for those of tp, FSDP
    and a ring of cp."""
    blocking_launches: bool = False
    """The host waits for each kernel before it launches the next one (CUDA_LAUNCH_BLOCKING=1)."""
    host: Host | None = None
    """None: not known, so nothing can be offloaded."""
    host_seconds: float = 0.0
    """Time of a step that is neither compute, nor communication, nor bubble: data, checkpoints, the host."""

    def __post_init__(self) -> None:
        for name in (
            "peak_flops",
            "memory_bytes",
            "ranks_per_node",
            "node_bytes_per_second",
            "network_bytes_per_second",
            "link_share",
            "network_share",
            "spine_share",
        ):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name):g}; it must be greater than 0")

    def within_bytes_per_second(self, ranks: int) -> float:
        """Rate at which a rank sends within a group of `ranks` ranks of its node, over the links that they share.

        A rank has ranks - 1 links to the others of a full mesh. In a block of a torus it has log2(ranks): one to a
        neighbour, two in 2 x 2, three in 2 x 2 x 2, four in a ring of 4 x 4.
        """
        if self.pair_bytes_per_second is None:
            return self.node_bytes_per_second
        links = max(log2(ranks) if self.torus else ranks - 1, 1)
        return min(links * self.pair_bytes_per_second, self.node_bytes_per_second)

    def tier(self, span: int) -> Tier:
        """Tier of a group that lies within `span` consecutive ranks."""
        if span <= self.ranks_per_node:
            return Tier.DOMAIN
        return Tier.RAIL if self.pod_ranks is None or span <= self.pod_ranks else Tier.SPINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Time of one kind of collective on the wire."""

    axis: str
    operation: str
    what: str
    tier: Tier
    algorithm: Algorithm
    seconds: float


def transfer(volume: Volume, *, machine: Machine, span: int, stride: int) -> Transfer:
    """Time of all collectives of `volume`, by the faster algorithm.

    `span`: number of consecutive ranks that the group lies within; `stride`: distance of two neighbours. The ranks of a
    group that share a node also share its network links, one ring for each.
    """
    times = algorithm_seconds(volume, machine=machine, span=span, stride=stride)
    algorithm = min(times, key=times.__getitem__)
    return Transfer(
        axis=volume.axis,
        operation=volume.operation,
        what=volume.what,
        tier=machine.tier(span),
        algorithm=algorithm,
        seconds=times[algorithm],
    )


def algorithm_seconds(volume: Volume, *, machine: Machine, span: int, stride: int) -> dict[Algorithm, float]:
    """Algorithm -> time of all collectives of `volume`; arguments as in `transfer`."""
    tier, together = machine.tier(span), volume.ranks
    if tier is not Tier.DOMAIN:
        together = min(together, max(machine.ranks_per_node // stride, 1))
    return _times(volume, machine=machine, tier=tier, together=together)


def _times(volume: Volume, *, machine: Machine, tier: Tier, together: int) -> dict[Algorithm, float]:
    """Algorithm -> seconds."""
    members = 2 if volume.operation == "send" else together
    near = machine.within_bytes_per_second(members) * machine.link_share
    far = machine.network_bytes_per_second * machine.network_share * (machine.spine_share if tier is Tier.SPINE else 1)
    nodes, ranks = -(-volume.ranks // together), volume.ranks
    if volume.operation == "send":
        speed, step = (near, machine.node_latency_seconds) if nodes == 1 else (far, machine.network_latency_seconds)
        return {Algorithm.DIRECT: volume.count * step + volume.num_bytes / speed}
    if volume.operation == "all_to_all":
        within, out = (
            volume.num_bytes * (together - 1) / ranks / near,
            volume.num_bytes * (ranks - together) / ranks / far,
        )
        step = machine.node_latency_seconds if nodes == 1 else machine.network_latency_seconds
        return {Algorithm.DIRECT: volume.count * step + max(within, out)}
    speed = near if nodes == 1 else min(near, far * together, machine.ring_bytes_per_second or near)
    passes = ring_passes(volume.operation)
    across = nodes - 1 if nodes > 1 else 0
    round_seconds = across * machine.network_latency_seconds + (ranks - 1 - across) * machine.node_latency_seconds
    times = {Algorithm.RING: volume.count * passes * round_seconds + volume.wire_bytes / speed}
    if volume.operation == "all_reduce":
        depth_seconds = (
            _depth(nodes) * machine.network_latency_seconds + _depth(together) * machine.node_latency_seconds
        )
        times[Algorithm.TREE] = volume.count * 2 * depth_seconds + 2 * volume.num_bytes / speed
    return times


def _depth(ranks: int) -> int:
    return ceil(log2(ranks))
