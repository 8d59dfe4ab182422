"""Hosts, racks and rails whose ranks are stragglers: the ranks have one cause, outside of them.

A rail is one local rank on all hosts: such ranks share a switch. Racks, and NVLink domains of several hosts, are known
if the training declares them, by `run.describe(racks={"host": "rack"}, nvlink_domains={"host": "domain"})`. A group is
named only if it is not the whole job.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from traincope.store import RunRecords

NEARLY_ALL = 0.75
"""Share of a group's ranks that must be stragglers."""
MIN_RANKS = 2
MIN_HOSTS = 3
"""Fewest hosts of a rail: two ranks with one local rank are a coincidence."""


class GroupKind(StrEnum):
    """Kind of a group of ranks; the value is its name in JSON."""

    RACK = "rack"
    NVLINK = "nvlink_domain"
    HOST = "host"
    RAIL = "rail"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """A group of ranks that are nearly all stragglers."""

    kind: GroupKind
    name: str
    """Name of the host or rack; the local rank of a rail."""
    ranks: tuple[int, ...]
    """The stragglers of the group."""
    size: int
    """Number of its ranks."""


def place_name(kind: GroupKind, name: str) -> str:
    """Return `host b`, `rack 7`, `NVLink domain 2` or `local rank 3 of every host`."""
    if kind is GroupKind.RAIL:
        return f"local rank {name} of every host"
    return f"{'NVLink domain' if kind is GroupKind.NVLINK else kind} {name}"


def slow_groups(run: RunRecords, stragglers: Collection[int]) -> tuple[SlowGroup, ...]:
    """Find the groups of these stragglers: racks, NVLink domains, hosts, then rails. No rank is in two of them."""
    found: list[SlowGroup] = []
    left = set(stragglers)
    for kind, groups in rank_groups(run):
        for name, ranks in groups.items():
            late = left.intersection(ranks)
            if len(late) >= max(MIN_RANKS, NEARLY_ALL * len(ranks)) and len(ranks) < len(run.ranks):
                found.append(SlowGroup(kind=kind, name=name, ranks=tuple(sorted(late)), size=len(ranks)))
                left -= late
    return tuple(found)


def rank_groups(run: RunRecords) -> Iterator[tuple[GroupKind, Mapping[str, list[int]]]]:
    """Yield each kind of group that is known, with name -> ranks: racks, NVLink domains, hosts, rails."""
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(run.ranks, key=lambda rank: rank.rank):
        hosts[rank.info.host.name].append(rank.rank)
    yield GroupKind.RACK, _of_hosts(hosts, run.info.settings.get("racks"))
    yield GroupKind.NVLINK, _of_hosts(hosts, run.info.settings.get("nvlink_domains"))
    yield GroupKind.HOST, hosts
    if len(hosts) >= MIN_HOSTS:
        locals_ = zip(*hosts.values(), strict=False)
        yield GroupKind.RAIL, {str(local_rank): list(ranks) for local_rank, ranks in enumerate(locals_)}


def _of_hosts(hosts: Mapping[str, list[int]], declared: object) -> Mapping[str, list[int]]:
    """Return the ranks of each declared group with several hosts."""
    groups: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        name = declared.get(host) if isinstance(declared, Mapping) else None
        if isinstance(name, str):
            groups[name].append(host)
    return {name: sorted(chain(*(hosts[host] for host in of))) for name, of in groups.items() if len(of) > 1}
