"""Findings about hosts on which the ranks lack cores or memory: what is short, why, and what then cannot be judged."""

from collections.abc import Sequence
from dataclasses import replace

from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.ledger.busy_threads import BusyThread, busy_thread
from traincope.analysis.ledger.host_shortages import BUSY_THREAD, MIN_OTHERS, HostShortage, ShortageCause
from traincope.analysis.verdict.findings import Finding, FindingKind, Weighted, percent, with_gain
from traincope.analysis.verdict.losses.host_losses import CHEAPER_BATCHES, OTHER_PROCESS
from traincope.timeline import Timeline
from traincope.units import count, numbers

ADVICE = {
    ShortageCause.BOUND_CORES: (
        "Bind each rank to cores of its own: look for taskset, numactl, os.sched_setaffinity and the binding of the "
        "launcher. `taskset -cp PID` shows the cores of a process"
    ),
    ShortageCause.CPU_QUOTA: (
        "Raise the CPU limit of the container (Kubernetes: resources.limits.cpu; docker run --cpus) to a core for each "
        "rank and each DataLoader worker"
    ),
    ShortageCause.CORES: "Start no more ranks on a host than it has cores, and leave cores to DataLoader workers",
    ShortageCause.OTHER_PROCESSES: (
        "Stop the other processes (`top` shows them), or give the ranks cores of their own. If they are DataLoader "
        "workers, use fewer"
    ),
    ShortageCause.OWN_THREADS: "Use no more threads than cores (OMP_NUM_THREADS), and fewer DataLoader workers",
    ShortageCause.INTERPRETER: OTHER_PROCESS,
    ShortageCause.UNKNOWN: "Find the threads that use the cores (`pidstat -t 1`), and give each rank cores of its own",
    ShortageCause.MEMORY: (
        "Free memory on the host (`free -h`), or raise the memory limit of the container: pages come back from a disk. "
        "Also look at data that is read through mmap"
    ),
}
SURE = (ShortageCause.BOUND_CORES, ShortageCause.CPU_QUOTA, ShortageCause.CORES, ShortageCause.OTHER_PROCESSES)
"""Causes that two kinds of evidence show: the waits of the threads, and what they may use or what the host does."""


SLOWED = 0.25
"""Wait per CPU time from which a shortage of cores makes transfers of a CPU much longer."""
UNJUDGED = (FindingKind.EXPOSED_TRANSFER, FindingKind.EXPOSED_WAIT)


def without_blame(exposed: Weighted, shortages: Sequence[HostShortage]) -> Weighted:
    """Yield these findings, but blame no transfer and no rank while the threads that transfer wait for cores.

    What need not be sent is reported in any case.

    `shortages`: empty if GPUs transfer.
    """
    lacks_cores = any((each.wait_per_cpu or 0.0) >= SLOWED for each in shortages)
    for share, finding in exposed:
        if lacks_cores and finding.kind in UNJUDGED and not finding.avoidable:
            why = "the ranks lack cores, so it is not known how long it takes with enough of them"
            finding = replace(
                finding,
                kind=FindingKind.EXPOSED_COMMUNICATION,
                confidence=UNKNOWN,
                evidence=f"{finding.evidence}; {why}",
                advice="Give the ranks enough cores first, and record again.",
                estimated_gain_ratio=None,
                gain_at_most=False,
            )
        yield share, finding


def host_findings(shortages: Sequence[HostShortage], timeline: Timeline) -> Weighted:
    """One finding for each cause, with all its ranks, about the worst host."""
    for cause in dict.fromkeys(each.cause for each in shortages):
        hosts = [each for each in shortages if each.cause is cause]
        yield hosts[0].ratio, _finding(hosts, _busy_thread_of_each(hosts[0], timeline))


def _busy_thread_of_each(shortage: HostShortage, timeline: Timeline) -> BusyThread | None:
    """Return the busiest thread of these ranks, if each of them has one of this name."""
    threads = [busy_thread(timeline, rank) for rank in shortage.ranks]
    found = [thread for thread in threads if thread is not None and thread.ratio >= BUSY_THREAD]
    is_common = len(found) == len(threads) and len({thread.text for thread in found}) == 1
    return (
        max(found, key=lambda thread: thread.ratio)
        if is_common and shortage.cause is not ShortageCause.MEMORY
        else None
    )


def _finding(hosts: Sequence[HostShortage], thread: BusyThread | None) -> Finding:
    worst, is_all = hosts[0], all(len(each.ranks) == each.num_ranks for each in hosts)
    more = f"; the same on {count(len(hosts) - 1, 'more host')}" if len(hosts) > 1 else ""
    if thread is not None:
        more = f"; on each of them, {thread.phrase}, and only the thread that holds the GIL runs Python{more}"
    advice = _advice(worst)
    if thread is not None and worst.cause is not ShortageCause.INTERPRETER:
        advice = f"{OTHER_PROCESS.removesuffix('.')}. {advice}"
    return Finding(
        kind=FindingKind.HOST_SHORTAGE,
        ranks=() if is_all else tuple(sorted(rank for each in hosts for rank in each.ranks)),
        confidence=HIGH if worst.cause in SURE else MEDIUM,
        evidence=f"{_waits(worst)}: {_why(worst)}{_others(worst)}{more}",
        advice=with_gain(advice, worst.ratio, at_most=True),
        estimated_gain_ratio=worst.ratio,
        gain_at_most=True,
    )


def _advice(shortage: HostShortage) -> str:
    others, workers = shortage.others_cores or 0.0, shortage.workers_cores or 0.0
    mostly_workers = shortage.cause is ShortageCause.OTHER_PROCESSES and 2 * workers >= others
    return CHEAPER_BATCHES if mostly_workers else ADVICE[shortage.cause]


def _waits(shortage: HostShortage) -> str:
    who = "all ranks" if len(shortage.ranks) == shortage.num_ranks > 1 else numbers(shortage.ranks, "rank")
    wait = "wait" if len(shortage.ranks) > 1 else "waits"
    if shortage.cause is ShortageCause.MEMORY:
        pages = f"{shortage.pages_per_second or 0.0:,.0f} pages per second"
        return f"{who} of host {shortage.host} {wait} for {pages} from a disk"
    if shortage.cause is ShortageCause.INTERPRETER:
        return (
            f"the training threads of {who} of host {shortage.host} stand still {percent(shortage.ratio)} of the time"
        )
    per_cpu = "" if shortage.wait_per_cpu is None else f", {shortage.wait_per_cpu:.2f} s per CPU second"
    return f"{who} of host {shortage.host} {wait} {percent(shortage.ratio)} of the time for a core{per_cpu}"


def _others(shortage: HostShortage) -> str:
    """Name what other processes use, where they are not the cause but take much."""
    others, cores = shortage.others_cores, shortage.host_cores
    if shortage.cause is ShortageCause.OTHER_PROCESSES or not others or not cores or others < MIN_OTHERS * cores:
        return ""
    return f"; other processes keep {others:.1f} of the host's {count(cores, 'core')} busy"


def _why(shortage: HostShortage) -> str:
    cores, host_cores = numbers(shortage.allowed, "core"), shortage.host_cores
    match shortage.cause:
        case ShortageCause.BOUND_CORES:
            return f"they may only run on {cores} of its {host_cores} cores"
        case ShortageCause.CPU_QUOTA:
            quota = "" if shortage.quota_cores is None else f" of {shortage.quota_cores:g} cores"
            return f"the CPU quota{quota} is used up in {percent(shortage.throttled_ratio or 0.0)} of the time"
        case ShortageCause.CORES:
            return f"{count(shortage.num_ranks, 'rank')} run on {count(len(shortage.allowed), 'core')}"
        case ShortageCause.OTHER_PROCESSES:
            others, own = shortage.others_cores or 0.0, shortage.ranks_cores or 0.0
            workers = f", {shortage.workers_cores:.1f} of them DataLoader workers" if shortage.workers_cores else ""
            return f"other processes keep {others:.1f} of its {host_cores} cores busy{workers}, the ranks {own:.1f}"
        case ShortageCause.OWN_THREADS:
            return f"the threads of the ranks keep {shortage.ranks_cores:.1f} of {len(shortage.allowed)} cores busy"
        case ShortageCause.INTERPRETER:
            return "in their compute they neither run nor wait for a core"
        case ShortageCause.MEMORY:
            return "their memory was taken from them, or they read files through mmap"
        case ShortageCause.UNKNOWN:
            return "it is not known which threads use their cores"
