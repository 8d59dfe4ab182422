"""Hosts that give several ranks too little CPU time or memory: losses that the ranks share, inside of all other terms.

The kernel counts how long each training thread was ready and had no core. What the ranks may use, and what their host
does, shows why: cores to which they are bound, a CPU quota, fewer cores than ranks, other processes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from traincope.analysis.attribution.terms import COMPUTE
from traincope.analysis.ledger.busy_threads import busy_thread
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.events import Kind, Usage
from traincope.timeline import LedgerClock, RankTimeline, Timeline
from traincope.topology import Host

NEEDED = {Usage.CORE_WAIT, Usage.CPU_TIME}
"""Counts without which nothing is judged. Older runs have only the first."""
MIN_RATIO = 0.05
"""Share of time that a rank must lose, and least share of it in which a quota or a memory must be short."""
SAME = 0.5
"""Least share of the longest wait on a host from which a rank is as short of cores as that one."""
STARVED, STARVED_SHARE = 1.0, 0.25
"""On a full host: wait per CPU time, and least share of the longest wait, from which a rank lacks cores too."""
BUSY_THREAD = 0.5
"""Part of the time in which another Python thread must be active to keep the training thread from the GIL."""
BUSY = 0.8
"""Share of the cores that must be busy for other processes, or the ranks' own threads, to be the cause."""
MIN_OTHERS = 0.1
"""Least share of the host's cores that other processes must use."""
PAGE_NS = 100_000
"""Time in which a fast disk delivers a page: about the latency of one read of an NVMe drive."""


class ShortageCause(StrEnum):
    """Why the ranks of a host lack something; the value is its name in JSON."""

    BOUND_CORES = "bound_cores"
    """They are bound to fewer cores than they are."""
    CPU_QUOTA = "cpu_quota"
    CORES = "cores"
    """The host has fewer cores than ranks."""
    OTHER_PROCESSES = "other_processes"
    OWN_THREADS = "own_threads"
    INTERPRETER = "interpreter"
    """Another Python thread of each rank holds the GIL."""
    UNKNOWN = "unknown"
    """They lack cores, and it is not known why."""
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShortage:
    """Shortage that several ranks of a host share, in the counted steps."""

    host: str
    ranks: tuple[int, ...]
    """Those that lack cores or memory."""
    num_ranks: int
    """Number of the run's ranks on this host."""
    cause: ShortageCause
    ratio: float
    """Share of the time in which a training thread waits for a core or for memory: the mean over these ranks."""
    wait_per_cpu: float | None
    """Wait for a core / CPU time of these training threads; None: they do not lack cores."""
    allowed: tuple[int, ...] = ()
    """Numbers of the cores that these ranks may use, together; empty: not recorded."""
    host_cores: int | None = None
    quota_cores: float | None = None
    """CPU time per time that their cgroup gets at most; None without a limit."""
    throttled_ratio: float | None = None
    """Share of the time in periods in which the quota was used up."""
    ranks_cores: float | None = None
    """Cores that all ranks of the host keep busy, without their child processes."""
    others_cores: float | None = None
    """Cores that other processes of the host keep busy, DataLoader workers among them."""
    workers_cores: float | None = None
    """Those of `others_cores` that the workers of the ranks' DataLoaders keep busy. None without workers."""
    pages_per_second: float | None = None
    """Pages that a training thread waits for until they are read from a disk: the mean over these ranks. None unless
    memory is short.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FullHost:
    """Host whose cores are busy in the counted steps, more with the workers of the DataLoaders than with the ranks."""

    ranks: tuple[int, ...]
    cores: float
    """Cores that the ranks may use, or the CPU quota if it is less."""
    workers_cores: float
    """Cores that the workers keep busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    rank: int
    rates: Mapping[Usage, float]
    limits: Mapping[str, Any]

    @property
    def core_wait(self) -> float:
        return self.rates[Usage.CORE_WAIT]

    @property
    def allowed(self) -> frozenset[int]:
        return frozenset(self.limits.get("allowed") or ())


def host_shortages(timeline: Timeline, ledger: Ledger) -> tuple[HostShortage, ...]:
    """Find what several ranks of one host lack, or its only one; the worst first. One of several is a straggler."""
    found = (
        shortage
        for host, ranks in _by_host(timeline, ledger).items()
        for shortage in (
            _of_cores(host.name, ranks),
            _of_memory(host.name, ranks),
            _of_interpreter(host.name, ranks, timeline, ledger),
        )
        if shortage is not None
    )
    return tuple(sorted(found, key=lambda shortage: -shortage.ratio))


def full_hosts(timeline: Timeline, ledger: Ledger) -> tuple[FullHost, ...]:
    """Find the hosts on which more workers of DataLoaders would find no free core."""
    found = []
    for host, ranks in _by_host(timeline, ledger).items():
        known = _measured(host.name, ranks, ranks)
        workers, own = known["workers_cores"], known["ranks_cores"]
        cores = min((limit for limit in (len(known["allowed"]), known["quota_cores"]) if limit), default=None)
        if cores is None or workers is None or own is None or workers <= own:
            continue
        if own + workers >= BUSY * cores or (_busy_ratio(known) or 0.0) >= BUSY:
            found.append(FullHost(ranks=known["ranks"], cores=cores, workers_cores=workers))
    return tuple(found)


def usage_rates(rank: RankTimeline, between_ns: tuple[int, int]) -> Mapping[Usage, float]:
    """Return the growth of each total per ns between its first and its last reading in this time."""
    records = rank.of_kind(Kind.USAGE)
    first_ns, last_ns = between_ns
    records = records[(records["start_ns"] >= first_ns) & (records["start_ns"] <= last_ns)]
    rates = {}
    for number in np.unique(records["name"]).tolist():
        read = records[records["name"] == number]
        passed_ns = int(read["start_ns"][-1] - read["start_ns"][0])
        if passed_ns > 0:
            rates[Usage(rank.name(number))] = int(read["value"][-1] - read["value"][0]) / passed_ns
    return rates


def _by_host(timeline: Timeline, ledger: Ledger) -> Mapping[Host, Sequence[_Rank]]:
    """Return the ranks with counts, by host."""
    info = {rank.rank: rank.info for rank in timeline.run.ranks}
    timelines = {rank.rank: rank for rank in timeline.ranks}
    hosts: dict[Host, list[_Rank]] = {}
    for own in ledger.ranks:
        about = info[own.rank]
        rates = usage_rates(timelines[own.rank], _counted_ns(timelines[own.rank], own)) if own.counted.any() else {}
        if rates.keys() >= NEEDED:
            hosts.setdefault(about.host, []).append(_Rank(rank=own.rank, rates=rates, limits=about.cpu_limits))
    return hosts


def _counted_ns(rank: RankTimeline, ledger: RankLedger) -> tuple[int, int]:
    """Return the start of the first and the end of the last counted step."""
    bounds = {step.number: (step.start_ns, step.end_ns) for step in rank.steps}
    numbers = ledger.numbers[ledger.counted]
    return bounds[int(numbers[0])][0], bounds[int(numbers[-1])][1]


def _of_cores(host: str, ranks: Sequence[_Rank]) -> HostShortage | None:
    longest = max(rank.core_wait for rank in ranks)
    is_full = (_busy_ratio(_measured(host, ranks, ranks)) or 0.0) >= BUSY
    short = []
    for rank in ranks:
        is_starved = is_full and rank.core_wait >= STARVED * rank.rates[Usage.CPU_TIME]
        if rank.core_wait >= max(MIN_RATIO, (STARVED_SHARE if is_starved else SAME) * longest):
            short.append(rank)
    bound = _bound_together(short, ranks)
    short = bound or short
    if not short or (len(short) == 1 < len(ranks)):
        return None
    waited, cpu = (sum(rank.rates[usage] for rank in short) for usage in (Usage.CORE_WAIT, Usage.CPU_TIME))
    shortage = _measured(host, short, ranks)
    return HostShortage(
        **shortage,
        cause=_cause(shortage, is_bound=bool(bound)),
        ratio=waited / len(short),
        wait_per_cpu=waited / cpu if cpu else None,
    )


def _bound_together(short: Sequence[_Rank], ranks: Sequence[_Rank]) -> list[_Rank]:
    """Return the ranks that may only use fewer cores than they are, where most ranks share the fewest cores."""
    sets = {rank.allowed for rank in short if rank.allowed}
    within = {allowed: [rank for rank in ranks if rank.allowed and rank.allowed <= allowed] for allowed in sets}
    crowded = [allowed for allowed in sets if len(allowed) < len(within[allowed])]
    worst = max(crowded, key=lambda allowed: (len(within[allowed]) / len(allowed), -len(allowed)), default=None)
    return [] if worst is None else [rank for rank in short if rank.allowed <= worst]


def _measured(host: str, short: Sequence[_Rank], ranks: Sequence[_Rank]) -> dict[str, Any]:
    """Return what is known of the ranks' limits and of their host, as fields of a shortage."""
    cores = next((rank.limits["cores"] for rank in short if rank.limits.get("cores")), None)
    quotas = [rank.limits["quota"] for rank in short if rank.limits.get("quota")]
    throttled = [rank.rates[Usage.THROTTLED] for rank in short if Usage.THROTTLED in rank.rates]
    busy = [rank.rates[Usage.PROCESS_CPU_TIME] for rank in ranks if Usage.PROCESS_CPU_TIME in rank.rates]
    idle = [rank.rates[Usage.HOST_IDLE] for rank in ranks if Usage.HOST_IDLE in rank.rates]
    workers = [rank.rates[Usage.WORKERS_CPU_TIME] for rank in ranks if Usage.WORKERS_CPU_TIME in rank.rates]
    others = cores - float(np.median(idle)) - sum(busy) if cores and idle and len(busy) == len(ranks) else None
    return {
        "host": host,
        "ranks": tuple(rank.rank for rank in short),
        "num_ranks": len(ranks),
        "allowed": tuple(sorted(frozenset[int]().union(*(rank.allowed for rank in short)))),
        "host_cores": cores,
        "quota_cores": min(quotas, default=None),
        "throttled_ratio": float(np.mean(throttled)) if throttled else None,
        "ranks_cores": sum(busy) if len(busy) == len(ranks) else None,
        "others_cores": None if others is None else max(others, 0.0),
        "workers_cores": sum(workers) if workers else None,
    }


def _cause(known: Mapping[str, Any], *, is_bound: bool) -> ShortageCause:
    """Judge by limits first: they are set, and hold whatever else the host does."""
    cores, allowed, others, own = (known[key] for key in ("host_cores", "allowed", "others_cores", "ranks_cores"))
    if (known["throttled_ratio"] or 0.0) >= MIN_RATIO:
        return ShortageCause.CPU_QUOTA
    if is_bound:
        return ShortageCause.BOUND_CORES if cores and len(allowed) < cores else ShortageCause.CORES
    if (_busy_ratio(known) or 0.0) >= BUSY and others >= MIN_OTHERS * cores:
        return ShortageCause.OTHER_PROCESSES
    if allowed and own is not None and own >= BUSY * len(allowed):
        return ShortageCause.OWN_THREADS
    return ShortageCause.UNKNOWN


def _busy_ratio(known: Mapping[str, Any]) -> float | None:
    """Return the share of the host's cores that are busy; None if it is unknown."""
    cores, others, own = (known[key] for key in ("host_cores", "others_cores", "ranks_cores"))
    return None if not cores or others is None or own is None else (own + others) / cores


def _of_memory(host: str, ranks: Sequence[_Rank]) -> HostShortage | None:
    """Pages that come back from a disk on several ranks, while threads of their cgroup or host wait for memory."""
    read = {rank.rank: rank.rates.get(Usage.MAJOR_FAULTS, 0.0) for rank in ranks}
    short = [rank for rank in ranks if read[rank.rank] * PAGE_NS >= MIN_RATIO]
    stalled = [rank.rates[Usage.MEMORY_STALL] for rank in short if Usage.MEMORY_STALL in rank.rates]
    if not short or (len(short) == 1 < len(ranks)) or (stalled and max(stalled) < MIN_RATIO):
        return None
    mean = float(np.mean([read[rank.rank] for rank in short]))
    return HostShortage(
        host=host,
        ranks=tuple(rank.rank for rank in short),
        num_ranks=len(ranks),
        cause=ShortageCause.MEMORY,
        ratio=min(mean * PAGE_NS, 1.0),
        wait_per_cpu=None,
        pages_per_second=mean * 1e9,
    )


def _of_interpreter(host: str, ranks: Sequence[_Rank], timeline: Timeline, ledger: Ledger) -> HostShortage | None:
    """All ranks have a busy thread, and the training threads neither run nor lack a core in a part of their compute.

    A thread also stands still while it waits for a GPU, or for threads that compute with it: then nothing is said.
    """
    if ledger.clock is not LedgerClock.HOST or any("count" in rank.info.device for rank in timeline.run.ranks):
        return None
    stopped = {}
    for own in ledger.ranks:
        rank = next((each for each in ranks if each.rank == own.rank), None)
        thread = None if rank is None else busy_thread(timeline, own.rank)
        if rank is not None and thread is not None and thread.ratio >= BUSY_THREAD:
            if rank.rates.get(Usage.PROCESS_CPU_TIME, 0.0) - rank.rates[Usage.CPU_TIME] - thread.ratio >= MIN_RATIO:
                return None
            computes = sum(own.total(term) or 0 for term in COMPUTE) / max(own.total_wall_ns, 1)
            stopped[own.rank] = computes - rank.rates[Usage.CPU_TIME] - rank.core_wait
    if len(stopped) < len(ranks) or min(stopped.values()) < MIN_RATIO:
        return None
    return HostShortage(
        host=host,
        ranks=tuple(stopped),
        num_ranks=len(ranks),
        cause=ShortageCause.INTERPRETER,
        ratio=float(np.mean([*stopped.values()])),
        wait_per_cpu=None,
    )


def short_ranks(shortages: Collection[HostShortage]) -> frozenset[int]:
    """Return the ranks that lack cores together with others."""
    return frozenset(rank for each in _shared(shortages) for rank in each.ranks)


def bound_apart(timeline: Timeline, rank: int, peers: Collection[int]) -> frozenset[int]:
    """Return the cores to which a rank is bound, if each of its peers on the host may use another one; else nothing."""
    info = {each.rank: each.info for each in timeline.run.ranks}
    allowed = {
        number: frozenset(info[number].cpu_limits.get("allowed") or ())
        for number in (rank, *peers)
        if info[number].host == info[rank].host
    }
    own = allowed.pop(rank)
    return own if allowed and all(others - own for others in allowed.values()) else frozenset()


def _shared(shortages: Collection[HostShortage]) -> Iterator[HostShortage]:
    yield from (each for each in shortages if each.wait_per_cpu is not None and len(each.ranks) > 1)
