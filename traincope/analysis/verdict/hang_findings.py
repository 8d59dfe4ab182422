"""Findings about hangs and mismatched collectives: the culprits, and which line or process to look at."""

from collections.abc import Iterator, Sequence

from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.hangs.hang import Hang, HangKind
from traincope.analysis.faults.recovery import recovery
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.analysis.verdict.lost_connections import check_host
from traincope.timeline import Timeline, with_copies
from traincope.units import numbers

MAX_PROCESSES = 4
"""With more suspects than this, only the first processes are named."""


def hang_findings(timeline: Timeline, hangs: Sequence[Hang], faults: Sequence[Fault] = ()) -> Iterator[Finding]:
    """One finding per hang. `ranks` are the culprits; without any they are the suspects, or a lost host's ranks.

    `faults`: of the same timeline, with its checkpoints.
    """
    for hang in hangs:
        yield Finding(
            kind=FindingKind(hang.fault_kind),
            ranks=hang.culprits or hang.suspects,
            steps=() if hang.step is None else (hang.step,),
            confidence=hang.confidence,
            evidence=hang.evidence,
            advice=" ".join([_advice(timeline, hang), *_recovery(timeline, hang, faults)]),
        )


def _recovery(timeline: Timeline, hang: Hang, faults: Sequence[Fault]) -> list[str]:
    """A mismatch spoils what is saved after it. The host may be the cause if no line of the training is."""
    without_line = hang.kind == HangKind.STUCK and hang.call_site is None
    lost = hang.kind == HangKind.LOST_HOST
    return recovery(timeline, faults, before_ns=hang.since_ns, host_of=hang.fault_ranks if without_line or lost else ())


def _advice(timeline: Timeline, hang: Hang) -> str:
    named = numbers(hang.culprits, "rank")
    if hang.kind == HangKind.LOST_HOST and hang.host is not None:
        return check_host(hang.host)
    if hang.kind == HangKind.NONE_COMPLETES:
        return "Check the network and the GPUs of these hosts (cables, driver, XID errors): no rank is the culprit."
    if hang.kind == HangKind.DEADLOCK:
        return f"Issue the collectives of both groups in the same order on {named}."
    if hang.kind == HangKind.LEFT:
        return f"Give every rank the same number of steps: {named} finished before the others."
    if hang.kind == HangKind.MISMATCH and hang.culprits:
        where = "" if hang.step is None else f" in step {hang.step}"
        return f"Find the branch that only {named} takes{where}: every rank must issue the same collectives."
    if hang.call_site is not None:
        return f"Look at {hang.call_site}{_processes(timeline, hang.culprits)}."
    ranks = hang.culprits or hang.suspects
    whose = f"{numbers(ranks, 'rank') if ranks else 'all ranks'}{_processes(timeline, ranks)}"
    return f"Get the stacks of {whose}: py-spy dump --pid PID."


def _processes(timeline: Timeline, ranks: Sequence[int]) -> str:
    """Process and host of each rank, as far as the records show them."""
    infos = {rank.rank: rank.info for rank in with_copies(timeline).run.ranks}
    listed = [
        f"process {infos[rank].pid} on {infos[rank].host.name}"
        for rank in ranks[:MAX_PROCESSES]
        if rank in infos and infos[rank].pid
    ]
    return f" ({', '.join(listed)})" if listed else ""
