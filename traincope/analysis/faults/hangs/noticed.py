"""Hangs that an agent announced while the ranks stood still, for records that show the culprit no longer.

The end of a job that hangs adds evidence that misleads: a launcher, a timeout of the communication or a person ends the
ranks, one after the other, and their errors are later than the hang. On one host alone, copies of other hosts' ranks
become too old. The agent's answer is of the time of the hang.
"""

from collections.abc import Sequence
from dataclasses import replace

from traincope.analysis.faults.hangs.hang import Hang, HangKind
from traincope.store.job.hang_notices import HangNotice
from traincope.timeline import Timeline

NOTED = "an agent noted it at that time"


def noticed_hang(timeline: Timeline) -> Hang | None:
    """The first announced hang with a culprit after which no rank completed a step; None without one."""
    stepped_ns = max((rank.steps[-1].end_ns for rank in timeline.ranks if rank.steps), default=0)
    standing = (notice for notice in timeline.run.notices if notice.culprits and notice.at_wall_ns > stepped_ns)
    return next((hang for notice in standing if (hang := _hang(notice)) is not None), None)


def with_noticed(result: Sequence[Hang], noticed: Hang | None) -> tuple[Hang, ...]:
    """The announced hang, unless the records still decide who caused a hang that began before its announcement."""
    if noticed is None or noticed.until_ns is None:
        return tuple(result)
    decided = (hang for hang in result if hang.culprits or hang.kind in (HangKind.NONE_COMPLETES, HangKind.LOST_HOST))
    if any(hang.since_ns <= noticed.until_ns for hang in decided):
        return tuple(result)
    return (replace(noticed, evidence=f"{noticed.evidence}; {NOTED}"),)


def _hang(notice: HangNotice) -> Hang | None:
    """None for a notice of an earlier version, or a damaged one."""
    judged = notice.judged
    try:
        since_ns, lasted_ns = int(judged["since"]), int(judged["lasted_ns"])
        noticed = judged["detected_after_seconds"]
        return Hang(
            kind=HangKind(judged["kind"]),
            culprits=notice.culprits,
            host=_text(judged["host"]),
            victims=tuple(map(int, judged["victims"])),
            group=_text(judged["group"]),
            axis=_text(judged["axis"]),
            collective=_text(judged["collective"]),
            step=None if judged["step"] is None else int(judged["step"]),
            call_site=_text(judged["call_site"]),
            stack=tuple(map(str, judged["stack"])),
            doing=_text(judged["doing"]),
            since_ns=since_ns,
            until_ns=since_ns + lasted_ns,
            noticed_ns=None if noticed is None else since_ns + round(1e9 * noticed),
            confidence=str(judged["confidence"]),
            evidence=str(judged["evidence"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _text(value: object) -> str | None:
    return None if value is None else str(value)
