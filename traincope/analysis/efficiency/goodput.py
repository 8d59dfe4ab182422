"""Goodput: how the job's time splits over all its attempts.

    elapsed = productive + lost + startup + restart + checkpoint stalls + evaluation + other

Each instant is in exactly one part. The time before an attempt's first step is startup or restart, whatever the attempt
did then. After the first step, evaluation comes before checkpoint stalls, and these before steps; other is the rest.
Productive is the time of steps whose result survived. Steps after the last checkpoint before a restart are lost. Ranks
make the same steps, so the lowest rank of each attempt represents all ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from traincope.store import Attempt
from traincope.store.job.attempts import summarise
from traincope.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Split of a job's time; times are those of one rank."""

    attempts: tuple[Attempt, ...]
    elapsed_ns: int
    """Time of all attempts, each from its first record to its last, and the time between attempts."""
    steps_done: int
    """Complete steps, including lost ones."""
    steps_ns: int
    """Time of these steps: productive and lost."""
    steps_lost: int | None
    lost_ns: int | None
    reason: str | None
    """Reason why the lost steps are unknown."""
    startup_ns: int
    """Time until the first attempt's first step, or until its end if it made no step."""
    restart_ns: int
    """Time from the last record of each attempt to the first step of the next, or to its end if it made no step."""
    checkpoint_stall_ns: int
    evaluation_ns: int
    other_ns: int
    """Time between steps, and in incomplete steps."""

    @property
    def num_ranks(self) -> int | None:
        """Ranks of every attempt that made a step; None if attempts differ or the number is unknown."""
        counts = {len(attempt.endings) for attempt in self.attempts if attempt.num_steps}
        return counts.pop() if len(counts) == 1 and 0 not in counts else None

    @property
    def steps_kept(self) -> int | None:
        """Number of steps whose result survived."""
        return None if self.steps_lost is None else self.steps_done - self.steps_lost

    @property
    def productive_ns(self) -> int | None:
        return None if self.lost_ns is None else self.steps_ns - self.lost_ns

    @property
    def productive_ratio(self) -> float | None:
        """Runtime goodput: productive time over elapsed time."""
        return None if self.productive_ns is None or not self.elapsed_ns else self.productive_ns / self.elapsed_ns


def goodput(timeline: Timeline, *, end_ns: int | None = None) -> Goodput | None:
    """Goodput of the run; None if no attempt made a step, and for imported traces, which show a part of the job.

    `end_ns`: the run's end, if it is not its last record.
    """
    if timeline.run.info.imported:
        return None
    return goodput_of(all_attempts(timeline, end_ns=end_ns))


def goodput_of(attempts: tuple[Attempt, ...]) -> Goodput | None:
    """Goodput of attempts in order; the last may still run. None if no attempt made a step."""
    if all(attempt.first_step_ns is None for attempt in attempts):
        return None
    losses = [(_lost(before, after), before, after) for before, after in _continued(attempts)]
    reason = next((_why_unknown(before, after) for loss, before, after in losses if loss is None), None)
    known = [loss for loss, _, _ in losses if loss is not None]
    startup_ns, restart_ns = attempts[0].startup_ns, sum(restart_gap_ns(*pair) for pair in pairwise(attempts))
    return Goodput(
        attempts=attempts,
        elapsed_ns=startup_ns
        + restart_ns
        + sum(attempt.last_ns - attempt.began_ns - attempt.startup_ns for attempt in attempts),
        steps_done=sum(attempt.num_steps for attempt in attempts),
        steps_ns=sum(attempt.steps_ns for attempt in attempts),
        steps_lost=None if reason else sum(steps for steps, _ in known),
        lost_ns=None if reason else sum(ns for _, ns in known),
        reason=reason,
        startup_ns=startup_ns,
        restart_ns=restart_ns,
        checkpoint_stall_ns=sum(attempt.checkpoint_stall_ns for attempt in attempts),
        evaluation_ns=sum(attempt.evaluation_ns for attempt in attempts),
        other_ns=sum(attempt.other_ns for attempt in attempts),
    )


def all_attempts(timeline: Timeline, *, end_ns: int | None = None) -> tuple[Attempt, ...]:
    """All attempts in order. The last is summarised as the earlier ones are; it ends at `end_ns` or its last record."""
    for rank in timeline.run.ranks:
        main = rank.thread("main")
        if len(main):
            endings = {other.rank: other.info.ending for other in timeline.run.ranks}
            last = summarise(
                main,
                names=rank.names,
                number=rank.attempt,
                last_ns=timeline.end_ns if end_ns is None else end_ns,
                endings=endings,
                details=rank.details,
            )
            return (*timeline.run.earlier, last)
    return timeline.run.earlier


def restart_gap_ns(before: Attempt, after: Attempt) -> int:
    """Time from the last record of an attempt to the first step of the next, or to its end if it made no step.

    Host clocks may place the next attempt's begin earlier; the gap is then 0.
    """
    return max(after.began_ns - before.last_ns, 0) + after.startup_ns


def _continued(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, Attempt]]:
    """Pair each attempt that made steps with the next one that made steps or loaded a checkpoint.

    An attempt that declared where it continued goes before one that made no step.
    """
    for at, before in enumerate(attempts):
        after = next((attempt for attempt in attempts[at + 1 :] if attempt.loaded or attempt.num_steps), None)
        stepping = next((attempt for attempt in attempts[at + 1 :] if attempt.num_steps), None)
        if stepping is not None and stepping.resumed_step is not None:
            after = stepping
        if before.num_steps and after is not None:
            yield before, after


def _lost(before: Attempt, after: Attempt) -> tuple[int, int] | None:
    """(Steps, ns) that the next attempt did not continue from; None if unknown.

    If the training declared where it continued, that decides. An attempt without such an event then began with step 0.

    Otherwise, an attempt that ended cleanly loses nothing. An attempt that loads a checkpoint continues from the last
    saved one, or from step 0 if none was saved. An attempt that loads none may have begun anew, or continued from what
    another library saved: steps are numbered from 0 in both cases.
    """
    if after.resumed_step is not None:
        return _lost_before(after.resumed_step, before)
    if before.clean:
        return 0, 0
    if not after.loaded:
        return None
    return before.num_steps - (before.kept_steps or 0), before.steps_ns - before.kept_ns


def _lost_before(resumed_step: int, before: Attempt) -> tuple[int, int] | None:
    """(Steps, ns) of an attempt after this step; None if their time is unknown."""
    lost = (before.resumed_step or 0) + before.num_steps - resumed_step
    if lost <= 0:
        return 0, 0
    if lost == before.num_steps - (before.kept_steps or 0):
        return lost, before.steps_ns - before.kept_ns
    return (lost, before.steps_ns) if lost == before.num_steps else None


def _why_unknown(before: Attempt, after: Attempt) -> str:
    if after.resumed_step is not None:
        return (
            f"attempt {after.number} continued from step {after.resumed_step}, which is not where the last checkpoint "
            f"of attempt {before.number} was recorded, so the time of the lost steps is unknown"
        )
    return (
        f"attempt {after.number} loaded no recorded checkpoint, so it is unknown whether it continued from "
        f"the steps of attempt {before.number}"
    )
