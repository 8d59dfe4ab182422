"""What metrics say of a run, said once: for a job that runs (`traincope.live`) and for one that is over (`history`).

The first adds up what each look at a job found, the second spreads a finished run over time; what a part of the
job's time, a term, a fault, a rank or a name is called, and which are shown, is here.
"""

from collections.abc import Iterable, Iterator, Mapping

from traincope.analysis import Fault, FaultKind
from traincope.analysis.bubble import Bubble
from traincope.analysis.goodput import Goodput
from traincope.store.attempts import SAVED, SAVING
from traincope.store.cards import RankInfo, RunInfo

LONGEST = 128
"""Characters of a label that are kept: a name from a run may be of any length."""
MOST_LOGGED = 16
"""Names of `run.log()` that are shown, the first that come."""
INTERNAL = "["
"""In the name of a value that is logged for the analysis, one of a long list."""
MOST_MODULES = 96
"""Of one rank; the time of those that come later is counted together."""
OTHER_MODULES = "other"
UNNAMED, OTHER_AXES = "group:", "other"
"""What the axis of a group begins with of which nothing tells the axis; and what all of those are called."""
BUBBLE = "bubble"
"""Its parts are differences and may be negative; their sum is time."""
JOB = ""
"""Rank of a fault that is the whole job's."""


def clean(text: str) -> str:
    """Any text as a label: no half characters, which UTF-8 cannot write, and not too long."""
    return text[:LONGEST].encode("utf-8", "replace").decode()


def about_run(info: RunInfo, *, attempt: int) -> tuple[str, ...]:
    """Labels of `metrics.RUN_INFO` after run and host."""
    mesh = ",".join(f"{axis}={size}" for axis, size in info.mesh.items())
    versions = (info.versions.get("torch", ""), info.versions.get("traincope", ""))
    return str(info.world_size), mesh, str(attempt), *versions


def about_rank(info: RankInfo) -> tuple[str, ...]:
    """Labels of `metrics.RANK_INFO` after the rank."""
    coords = ",".join(f"{axis}={at}" for axis, at in info.coord.coords.items())
    return coords, str(info.device.get("name", ""))


def term_and_axis(term: str) -> tuple[str, str]:
    """ "exposed_wait[fsdp]" -> ("exposed_wait", "fsdp"); the parts of the bubble are one term."""
    name, _, axis = term.partition("[")
    return name.partition(".")[0] if name.startswith(f"{BUBBLE}.") else name, axis_of(axis.rstrip("]"))


def axis_of(axis: str) -> str:
    """As a label: a job may have any number of groups that have no name, and each would be a series of each rank."""
    return OTHER_AXES if axis.startswith(UNNAMED) else axis


def parts_of_time(goodput: Goodput) -> Mapping[str, int]:
    """What the job's time went to, ns; what is not known is left out."""
    parts = {
        "productive": goodput.productive_ns,
        "lost": goodput.lost_ns,
        "startup": goodput.startup_ns,
        "restart": goodput.restart_ns,
        "checkpoint_stall": goodput.checkpoint_stall_ns,
        "evaluation": goodput.evaluation_ns,
        "other": goodput.other_ns,
    }
    return {part: ns for part, ns in parts.items() if ns is not None}


def counted_faults(faults: Iterable[Fault]) -> Iterator[tuple[str, str, int]]:
    """(Rank, kind, when) of each fault on each of its ranks; marks are none."""
    for fault in faults:
        if fault.is_fault:
            yield from ((str(rank), fault.kind.value, fault.at_ns) for rank in fault.ranks or (JOB,))


def saved_ns(mark: Fault) -> int | None:
    """When the checkpoint was whole that this mark tells of; None: it tells of none."""
    if mark.kind is FaultKind.EVENT and mark.what == SAVED:
        return mark.at_ns
    whole = mark.kind is FaultKind.CHECKPOINT and mark.what.partition(" ")[0] == SAVING and not mark.evidence
    return mark.at_ns + (mark.lasted_ns or 0) if whole else None


def expected_bubble(bubble: Bubble) -> float | None:
    """Share of a step: by the schedule's formula, or where there is none by the replay."""
    return bubble.replay_ratio if bubble.theory_ratio is None else bubble.theory_ratio
