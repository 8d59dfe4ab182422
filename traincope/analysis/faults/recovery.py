"""Recovery after a fault: the checkpoint to restart from, and the command that takes a host out of the cluster.

Commands are shown to the user. traincope never runs them.
"""

import math
from collections.abc import Iterable, Sequence

from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.events import CHECKPOINT_SAVED
from traincope.store.job.attempts import LOADING, SAVING
from traincope.timeline import Timeline
from traincope.topology import Scheduler

SAVING_IN_BACKGROUND = "async_save"
TAKE_OUT = {
    Scheduler.SLURM: "scontrol update nodename={} state=drain reason=traincope",
    Scheduler.KUBERNETES: "kubectl cordon {}",
}


def recovery(
    timeline: Timeline, faults: Iterable[Fault], *, before_ns: int | None = None, host_of: Sequence[int] = ()
) -> list[str]:
    """Sentences about what to do besides finding the cause.

    `faults`, `before_ns`: as for `restart_point`. `host_of`: ranks whose host may be the cause.
    """
    command, checkpoint = take_out(timeline, host_of), restart_point(timeline, faults, before_ns=before_ns)
    return [
        *([] if checkpoint is None else [f"Restart from {checkpoint}."]),
        *([] if command is None else [f"If the host is the cause, take it out: {command}"]),
    ]


def take_out(timeline: Timeline, ranks: Sequence[int]) -> str | None:
    """Return the command that keeps new jobs away from the ranks' host.

    None if the ranks have several hosts, or if the scheduler's name of the host is not recorded.
    """
    copies = (copy for host in timeline.run.witnessed for copy in host.ranks)
    nodes = {rank.info.node for rank in (*timeline.run.ranks, *copies) if rank.rank in ranks}
    node = nodes.pop() if len(nodes) == 1 else None
    return None if node is None else TAKE_OUT[node.scheduler].format(node.name)


def restart_point(timeline: Timeline, faults: Iterable[Fault], *, before_ns: int | None = None) -> str | None:
    """Name the last complete checkpoint of the attempt. None if it saved and loaded none.

    `faults`: with the marks of the same timeline. `before_ns`: a checkpoint that began later does not count.
    """
    marks = sorted((fault for fault in faults if _is_of_checkpoint(fault)), key=lambda mark: mark.at_ns)
    complete = [mark for mark in _complete(marks) if before_ns is None or mark.at_ns <= before_ns]
    if complete:
        last = complete[-1]
        step = _last_step(timeline, last.at_ns) if last.step is None else last.step
        return "the checkpoint from before the first step" if step is None else f"the checkpoint of step {step}"
    return "the checkpoint that this attempt loaded" if any(_does(mark, LOADING) for mark in marks) else None


def _complete(marks: Sequence[Fault]) -> list[Fault]:
    """Saves of which every rank completed its part, by time. `marks`: by time."""
    saves = [mark for mark in marks if _does(mark, SAVING)]
    savers = {rank for mark in saves for rank in mark.ranks}
    complete = [mark for mark in saves if not mark.evidence and set(mark.ranks) == savers]
    background = [mark for mark in marks if _does(mark, SAVING_IN_BACKGROUND)]
    following = [*(mark.at_ns for mark in background[1:]), math.inf]
    for count, (begun, until_ns) in enumerate(zip(background, following[: len(background)], strict=True), start=1):
        ends = [mark for mark in marks if mark.kind != FaultKind.CHECKPOINT and mark.at_ns < until_ns]
        if all(_settled(ends, rank, since_ns=begun.at_ns, count=count) for rank in begun.ranks):
            complete.append(begun)
    return sorted(complete, key=lambda mark: mark.at_ns)


def _settled(ends: Sequence[Fault], rank: int, *, since_ns: int, count: int) -> bool:
    """True if as many background saves of the rank are over as began, and none failed since then.

    The end of one does not say which it is. So one counts only at a time when none is under way.
    """
    rank_ends = [end for end in ends if rank in end.ranks]
    failed = any(end.kind == FaultKind.CHECKPOINT_FAILED and end.at_ns >= since_ns for end in rank_ends)
    return len(rank_ends) >= count and not failed


def _is_of_checkpoint(fault: Fault) -> bool:
    return fault.kind in (FaultKind.CHECKPOINT, FaultKind.CHECKPOINT_FAILED) or fault.what == CHECKPOINT_SAVED


def _does(mark: Fault, action: str) -> bool:
    return mark.kind == FaultKind.CHECKPOINT and mark.what.partition(" ")[0] == action


def _last_step(timeline: Timeline, at_ns: int) -> int | None:
    """The last step that was over on all ranks at this time."""
    done = [[step.number for step in rank.steps if step.end_ns <= at_ns] for rank in timeline.ranks]
    return min(map(max, done)) if done and all(done) else None
