"""Rates that a run or a preflight measured, in place of those of data sheets and of the fitted constants."""

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from traincope.errors import UsageError
from traincope.plan.layout.bus import ring_passes
from traincope.plan.layout.kernels import STREAMING, Kernels, uniform
from traincope.plan.layout.machine import Machine
from traincope.plan.search.kernel_rates import KernelRates, fitted_kernels

REDUCTION = "all_reduce"
SEARCHED_DTYPE = "bfloat16"
"""Type of the products of a search, as a preflight names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """Links of a tier, as collectives use them."""

    latency_seconds: float
    """Time of one step of a ring."""
    bytes_per_second: float
    """Rate of one rank."""
    is_lower_bound: bool = False
    """The rate may be larger: the links within the hosts may have limited the group that was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRates:
    """Rates of one rank. None: not measured, so the data sheet and the fitted constant apply."""

    source: str
    """The run or the file."""
    flops_per_second: float | None = None
    kernels: KernelRates | None = None
    """Times of kernels by shape, in place of `flops_per_second`."""
    memory_bytes_per_second: float | None = None
    holds_pointwise: bool = False
    """`flops_per_second` is that of all compute, operations besides matrix products included."""
    node: MeasuredLink | None = None
    network: MeasuredLink | None = None
    streams: bool = True
    """As in `Machine`."""
    host_seconds: float = 0.0
    """Time of a step that is neither compute, nor communication, nor bubble."""

    def applied(self, machine: Machine) -> Machine:
        """The machine with these rates. Raises UsageError for a rate above the peak."""
        rates: dict[str, Any] = {
            "link_share": 1.0,
            "network_share": 1.0,
            "streams": self.streams,
            "host_seconds": self.host_seconds,
        }
        if self.kernels is not None:
            rates["kernels"] = fitted_kernels(self.kernels, machine)
        elif self.flops_per_second is not None:
            rates["kernels"] = self._kernels(machine)
        if self.holds_pointwise:
            rates["memory_bytes_per_second"] = None
        elif self.memory_bytes_per_second is not None:
            rates["memory_bytes_per_second"] = self.memory_bytes_per_second / STREAMING
        for name, link, share in (
            ("node", self.node, machine.link_share),
            ("network", self.network, machine.network_share),
        ):
            if link is None:
                rates[f"{name}_bytes_per_second"] = getattr(machine, f"{name}_bytes_per_second") * share
            else:
                rates[f"{name}_bytes_per_second"] = link.bytes_per_second
                rates[f"{name}_latency_seconds"] = link.latency_seconds
        if machine.pair_bytes_per_second is not None:
            pair = machine.pair_bytes_per_second * machine.link_share
            rates["pair_bytes_per_second"] = pair if self.node is None else None
        return replace(machine, **rates)

    def _kernels(self, machine: Machine) -> Kernels:
        """Kernels that reach the measured rate: all alike, or the family's with products of that rate."""
        assert self.flops_per_second is not None
        if self.flops_per_second > machine.peak_flops:
            raise UsageError(
                f"{self.source} computes {self.flops_per_second:.3g} FLOP/s per rank, more than the peak of "
                f"{machine.peak_flops:.3g}; name the GPU that it ran on with --gpu"
            )
        share = self.flops_per_second / machine.peak_flops
        return uniform(share) if self.holds_pointwise else machine.kernels.with_product(share)


def network_link(ring: MeasuredLink, hosts: Sequence[Hashable], *, node_latency_seconds: float | None) -> MeasuredLink:
    """Links between hosts, from a ring over several of them; `hosts`: the host of each rank of the ring.

    `ring`: bus bandwidth, and mean time of a step. Ranks of one host send over their network links together, so a rank
    has its share of the bandwidth. Of the ring's ranks - 1 steps, hosts - 1 are between hosts (`plan.layout.machine`).
    """
    num_hosts, together = len(set(hosts)), max(Counter(hosts).values())
    within = (len(hosts) - num_hosts) * (node_latency_seconds or 0.0)
    return MeasuredLink(
        latency_seconds=max((ring.latency_seconds * (len(hosts) - 1) - within) / (num_hosts - 1), 0.0),
        bytes_per_second=ring.bytes_per_second / together,
        is_lower_bound=together > 1,
    )


def read_preflight(path: Path) -> MeasuredRates:
    """Read the JSON of `traincope preflight --format json`.

    Raises UsageError for any other file, and for products of another type than the bf16 that a search assumes.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--like {path}: not a run directory, and not JSON: {error}") from error
    try:
        ranks = [rank for host in document["hosts"] for rank in host["ranks"]]
        hosts = {rank["rank"]: host["host"] for host in document["hosts"] for rank in host["ranks"]}
        dtypes = {rank["dtype"] for rank in ranks} - {None, SEARCHED_DTYPE}
        if dtypes:
            raise UsageError(
                f"--like {path}: it measured products in {', '.join(sorted(dtypes))}; run preflight with --set "
                "train.precision=bf16"
            )
        sweeps = document["sweeps"]
        node = _link(sweeps, hosts, across=False, node=None)
        return MeasuredRates(
            source=str(path),
            flops_per_second=_median(ranks, "product_flops_per_second"),
            memory_bytes_per_second=_median(ranks, "memory_bytes_per_second"),
            node=node,
            network=_link(sweeps, hosts, across=True, node=node),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"--like {path}: {problem}; give the output of `traincope preflight --format json`, or a run directory"
        ) from error


def _median(ranks: Sequence[Mapping[str, Any]], name: str) -> float | None:
    known = [float(rank[name]) for rank in ranks if rank[name] is not None]
    return median(known) if known else None


def _link(
    sweeps: Sequence[Mapping[str, Any]], hosts: Mapping[int, str], *, across: bool, node: MeasuredLink | None
) -> MeasuredLink | None:
    """The all-reduce of the largest groups that lie within one host, or across several: best one rank per host."""
    fitted = []
    for sweep in sweeps:
        if sweep["operation"] == REDUCTION and sweep["bus_bytes_per_second"]:
            of_groups = [[hosts[rank] for rank in group] for group in sweep["groups"]]
            if all((len(set(names)) > 1) is across for names in of_groups):
                crowded = max(of_groups, key=lambda names: max(Counter(names).values()))
                fitted.append((max(Counter(crowded).values()) if across else 1, -len(crowded), crowded, sweep))
    if not fitted:
        return None
    *_, names, sweep = min(fitted, key=lambda each: each[:2])
    ring = MeasuredLink(
        latency_seconds=float(sweep["latency_seconds"]) / (ring_passes(REDUCTION) * (len(names) - 1)),
        bytes_per_second=float(sweep["bus_bytes_per_second"]),
    )
    if not across:
        return ring
    return network_link(ring, names, node_latency_seconds=None if node is None else node.latency_seconds)
