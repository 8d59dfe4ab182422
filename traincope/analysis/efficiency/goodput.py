"""Goodput: how the job's time splits over all its attempts.

    elapsed = productive + skipped + rolled back + lost + startup + restart + checkpoint stalls + evaluation + other

Each instant is in exactly one part. The time before an attempt's first step is startup or restart, whatever the attempt
did then. After the first step, evaluation comes before checkpoint stalls, and these before steps; other is the rest.
Productive is the time of steps whose update survived. A step that a rollback undid is rolled back, one after the last
checkpoint before a restart is lost, and any other one that updated nothing is skipped. Ranks make the same steps, so
the lowest rank of each attempt represents all ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from traincope.store import Attempt
from traincope.store.job.attempts import summarise
from traincope.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLoss:
    """Steps of an attempt that no later attempt continued from."""

    attempt: int
    steps: int | None
    """None: unknown; `Goodput.reason` says why."""
    ns: int | None
    skipped_ns: int = 0
    """Part of `ns` in steps that updated nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Split of a job's time; times are those of one rank."""

    attempts: tuple[Attempt, ...]
    elapsed_ns: int
    """Time of all attempts, each from its first record to its last, and the time between attempts: productive + skipped
    + rolled_back + lost + startup + restart + checkpoint_stall + evaluation + other.
    """
    steps_done: int
    """Complete steps, including lost, rolled back and skipped ones."""
    steps_ns: int
    """Time of these steps: productive + skipped + rolled_back + lost."""
    steps_lost: int | None
    """Steps after the last checkpoint before a restart; None: the step at which it continued is unknown."""
    lost_ns: int | None
    reason: str | None
    """Reason why the lost steps are unknown."""
    steps_rolled_back: int = 0
    """Steps that a rollback undid, the bad step included."""
    rolled_back_ns: int = 0
    steps_skipped: int | None = 0
    """Other steps that updated nothing; None if the lost steps are unknown."""
    skipped_ns: int | None = 0
    startup_ns: int
    """Time until the first attempt's first step, or until its end if it made no step."""
    restart_ns: int
    """Time from the last record of each attempt to the first step of the next, or to its end if it made no step."""
    checkpoint_stall_ns: int
    evaluation_ns: int
    other_ns: int
    """Time between steps, and in incomplete steps."""
    losses: tuple[AttemptLoss, ...] = ()
    """One entry for each attempt with steps that another one followed; they sum to the lost steps."""

    @property
    def num_ranks(self) -> int | None:
        """Ranks of every attempt that made a step; None if attempts differ or the number is unknown."""
        counts = {len(attempt.endings) for attempt in self.attempts if attempt.num_steps}
        return counts.pop() if len(counts) == 1 and 0 not in counts else None

    @property
    def steps_kept(self) -> int | None:
        """Number of steps whose update survived."""
        if self.steps_lost is None or self.steps_skipped is None:
            return None
        return self.steps_done - self.steps_lost - self.steps_rolled_back - self.steps_skipped

    @property
    def productive_ns(self) -> int | None:
        if self.lost_ns is None or self.skipped_ns is None:
            return None
        return self.steps_ns - self.lost_ns - self.rolled_back_ns - self.skipped_ns

    @property
    def parts(self) -> Mapping[str, int | None]:
        """Part -> ns; the parts sum to the elapsed time. `productive`, `skipped` and `lost` are None together."""
        return {
            "productive": self.productive_ns,
            "skipped": self.skipped_ns,
            "rolled_back": self.rolled_back_ns,
            "lost": self.lost_ns,
            "startup": self.startup_ns,
            "restart": self.restart_ns,
            "checkpoint_stall": self.checkpoint_stall_ns,
            "evaluation": self.evaluation_ns,
            "other": self.other_ns,
        }

    @property
    def productive_ratio(self) -> float | None:
        """Runtime goodput: productive time over elapsed time. Kokolis et al. (arXiv 2410.21680) call it the effective
        training-time ratio; theirs also counts the time in the scheduler's queue before the first start.
        """
        return None if self.productive_ns is None or not self.elapsed_ns else self.productive_ns / self.elapsed_ns

    def productive_of(self, attempt: Attempt) -> int | None:
        """Productive time of one of the attempts; None if its lost steps are unknown. They sum to `productive_ns`."""
        loss = next((loss for loss in self.losses if loss.attempt == attempt.number), None)
        standing_ns = attempt.steps_ns - attempt.undone_ns - attempt.skipped_ns
        if loss is None:
            return standing_ns
        return None if loss.ns is None else standing_ns - loss.ns + loss.skipped_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Steps of one attempt, their time, and the part of both that updated nothing."""

    num: int
    ns: int
    skipped: int
    skipped_ns: int

    def __sub__(self, other: "_Steps") -> "_Steps":
        return _Steps(
            num=self.num - other.num,
            ns=self.ns - other.ns,
            skipped=self.skipped - other.skipped,
            skipped_ns=self.skipped_ns - other.skipped_ns,
        )


_NONE = _Steps(num=0, ns=0, skipped=0, skipped_ns=0)


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
    skipped = sum(attempt.skipped_steps for attempt in attempts)
    skipped_ns = sum(attempt.skipped_ns for attempt in attempts)
    startup_ns, restart_ns = attempts[0].startup_ns, sum(restart_gap_ns(*pair) for pair in pairwise(attempts))
    return Goodput(
        attempts=attempts,
        elapsed_ns=startup_ns
        + restart_ns
        + sum(attempt.last_ns - attempt.began_ns - attempt.startup_ns for attempt in attempts),
        steps_done=sum(attempt.num_steps for attempt in attempts),
        steps_ns=sum(attempt.steps_ns for attempt in attempts),
        steps_lost=None if reason else sum(loss.num for loss in known),
        lost_ns=None if reason else sum(loss.ns for loss in known),
        reason=reason,
        steps_rolled_back=sum(attempt.undone_steps for attempt in attempts),
        rolled_back_ns=sum(attempt.undone_ns for attempt in attempts),
        steps_skipped=None if reason else skipped - sum(loss.skipped for loss in known),
        skipped_ns=None if reason else skipped_ns - sum(loss.skipped_ns for loss in known),
        startup_ns=startup_ns,
        restart_ns=restart_ns,
        checkpoint_stall_ns=sum(attempt.checkpoint_stall_ns for attempt in attempts),
        evaluation_ns=sum(attempt.evaluation_ns for attempt in attempts),
        other_ns=sum(attempt.other_ns for attempt in attempts),
        losses=tuple(_attempt_loss(before.number, loss) for loss, before, _ in losses),
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


def _attempt_loss(attempt: int, lost: _Steps | None) -> AttemptLoss:
    if lost is None:
        return AttemptLoss(attempt=attempt, steps=None, ns=None)
    return AttemptLoss(attempt=attempt, steps=lost.num, ns=lost.ns, skipped_ns=lost.skipped_ns)


def _lost(before: Attempt, after: Attempt) -> _Steps | None:
    """Steps that the next attempt did not continue from; None if unknown.

    If the training declared where it continued, that decides. An attempt without such an event then began with step 0.

    Otherwise, an attempt that ended cleanly loses nothing. An attempt that loads a checkpoint continues from the last
    saved one, or from step 0 if none was saved. An attempt that loads none may have begun anew, or continued from what
    another library saved: steps are numbered from 0 in both cases.
    """
    if after.earliest_step is not None:
        return _lost_before(after.earliest_step, before)
    if before.clean:
        return _NONE
    return _standing(before) - _kept(before) if after.loaded else None


def _lost_before(resumed_step: int, before: Attempt) -> _Steps | None:
    """Steps of an attempt after this one; None if their time is unknown."""
    lost = before.state_steps - resumed_step
    if lost <= 0:
        return _NONE
    candidates = (_standing(before) - _kept(before), _standing(before))
    return next((steps for steps in candidates if steps.num == lost), None)


def _standing(attempt: Attempt) -> _Steps:
    """Steps that no rollback undid."""
    return _Steps(
        num=attempt.num_steps - attempt.undone_steps,
        ns=attempt.steps_ns - attempt.undone_ns,
        skipped=attempt.skipped_steps,
        skipped_ns=attempt.skipped_ns,
    )


def _kept(attempt: Attempt) -> _Steps:
    """Steps in the last complete checkpoint."""
    return _Steps(
        num=attempt.kept_steps or 0,
        ns=attempt.kept_ns,
        skipped=attempt.kept_skipped_steps,
        skipped_ns=attempt.kept_skipped_ns,
    )


def _why_unknown(before: Attempt, after: Attempt) -> str:
    if after.earliest_step is not None:
        return (
            f"attempt {after.number} continued from step {after.earliest_step}, which is not where the last checkpoint "
            f"of attempt {before.number} was recorded, so the time of the lost steps is unknown"
        )
    return (
        f"attempt {after.number} loaded no recorded checkpoint, so it is unknown whether it continued from "
        f"the steps of attempt {before.number}"
    )
