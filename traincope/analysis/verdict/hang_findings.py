"""Findings about hangs and mismatched collectives: the culprits, and which line or process to look at."""

from collections.abc import Iterator, Sequence

from traincope.analysis.faults.faults import ENDS, Fault, FaultKind
from traincope.analysis.faults.hangs.hang import Differs, Hang, HangKind
from traincope.analysis.faults.recovery import recovery
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, with_gain
from traincope.analysis.verdict.lost_connections import check_host, left_early
from traincope.events import NEW_GROUP
from traincope.store.job.hang_notices import StopState
from traincope.timeline import Timeline, with_copies
from traincope.units import numbers

MESSAGES = ("send", "recv")
RAISED = (FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY)
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
            evidence="; ".join([hang.evidence, *_own_error(hang, faults)]),
            advice=" ".join([_advice(timeline, hang), *_prospects(timeline, hang, faults)]),
        )


def _own_error(hang: Hang, faults: Sequence[Fault]) -> Iterator[str]:
    """Name the error that a culprit raised by itself while the others waited: it explains why the rank stood."""
    raised = [
        fault
        for fault in faults
        if fault.kind in RAISED
        and not (fault.of_communication or fault.handler or fault.raised == KeyboardInterrupt.__name__)
        and fault.at_ns >= hang.since_ns
        and {*fault.ranks} & {*hang.culprits}
    ]
    if raised:
        first = min(raised, key=lambda fault: fault.at_ns)
        yield f"then {numbers(first.ranks, 'rank')} raised {first.what}"


def ended_stops(timeline: Timeline, over: Sequence[Hang]) -> Iterator[Finding]:
    """One finding per stop that is over and cost a share of the run's time that is worth one."""
    for hang in over:
        share = (hang.lasted_ns or 0) / max(timeline.end_ns - timeline.start_ns, 1)
        if share >= MIN_SHARE:
            yield Finding(
                kind=FindingKind.STALL,
                ranks=hang.culprits,
                steps=() if hang.step is None else (hang.step,),
                confidence=hang.confidence,
                evidence=hang.evidence,
                advice=with_gain(_advice(timeline, hang), share),
                estimated_gain_ratio=share,
            )


def _prospects(timeline: Timeline, hang: Hang, faults: Sequence[Fault]) -> list[str]:
    """Say what to expect of a stall of a running job, and how to recover from any other stop.

    A mismatch spoils what is saved after it. The host may be the cause if no line of the training is.
    """
    if hang.state is StopState.STALL and not any(fault.kind in ENDS - {FaultKind.NO_END} for fault in faults):
        return ["It may go on by itself."]
    without_line = hang.kind == HangKind.STUCK and hang.call_site is None
    lost = hang.kind == HangKind.LOST_HOST
    return recovery(timeline, faults, before_ns=hang.since_ns, host_of=hang.fault_ranks if without_line or lost else ())


def _advice(timeline: Timeline, hang: Hang) -> str:
    named = numbers(hang.culprits, "rank")
    if hang.kind == HangKind.LOST_HOST and hang.host is not None:
        return check_host(hang.host)
    if hang.kind == HangKind.NONE_COMPLETES:
        where = "these hosts" if hang.common_place is None else f"these hosts, first of {hang.common_place}"
        return f"Check the network and the GPUs of {where} (cables, driver, XID errors): no rank is the culprit."
    if hang.kind == HangKind.DEADLOCK:
        if hang.collective in MESSAGES:
            return (
                f"Let one side send while the other receives, or post the messages of {named} together: "
                "torch.distributed.batch_isend_irecv."
            )
        return f"Issue the collectives of both groups in the same order on {named}."
    if hang.kind == HangKind.LEFT:
        return left_early(timeline, hang.culprits)
    if hang.kind == HangKind.MISMATCH and hang.differs == Differs.SIZE and hang.culprits:
        return f"Let {named} pass the size that the others pass: pad to a common size, or exchange the sizes first."
    if hang.kind == HangKind.MISMATCH and hang.differs == Differs.ROOT and hang.culprits:
        return f"Let {named} name the root (src or dst) that the others name."
    if hang.kind == HangKind.MISMATCH and hang.differs == Differs.ORDER:
        return f"Issue the collectives of all groups on {named} in the order of the other ranks."
    if hang.differs == Differs.TAG:
        return f"Let {named} give each message the tag that its other end waits for: both must count them alike."
    if hang.differs == Differs.GROUPS:
        return (
            f"Call {NEW_GROUP} for each group on all ranks, also on those that are no members, and in the same order. "
            "Or make it by its members alone, with use_local_synchronization=True."
        )
    if hang.kind == HangKind.MISMATCH and hang.culprits:
        where = "" if hang.step is None else f" in step {hang.step}"
        return (
            f"Find the branch that only {named} takes{where}: every rank must issue the same collectives. If its "
            "number of batches or microbatches differs, let all ranks agree on one number first."
        )
    over = bool(hang.culprits) and _is_over(timeline)
    if hang.call_site is not None and not (over and hang.kind == HangKind.BUSY):
        return f"Look at {hang.call_site}{_processes(timeline, hang.culprits)}."
    if over:
        what = f"what {named} did instead of joining the others" if hang.call_site is None else hang.call_site
        return (
            f"Look at {what}. If that work is meant, share it among all ranks, or raise their time-out "
            "(init_process_group(timeout=...)) above its time."
        )
    ranks = hang.culprits or hang.suspects
    whose = f"{numbers(ranks, 'rank') if ranks else 'all ranks'}{_processes(timeline, ranks)}"
    return f"Get the stacks of {whose}: py-spy dump --pid PID."


def _is_over(timeline: Timeline) -> bool:
    """Return whether a rank ended its run, and no process is known to be left whose stacks could be read."""
    ranks = timeline.run.ranks
    return any(rank.info.ending is not None for rank in ranks) and not any(rank.running for rank in ranks)


def _processes(timeline: Timeline, ranks: Sequence[int]) -> str:
    """Process and host of each rank, as far as the records show them."""
    infos = {rank.rank: rank.info for rank in with_copies(timeline).run.ranks}
    listed = [
        f"process {infos[rank].pid} on {infos[rank].host.name}"
        for rank in ranks[:MAX_PROCESSES]
        if rank in infos and infos[rank].pid
    ]
    return f" ({', '.join(listed)})" if listed else ""
