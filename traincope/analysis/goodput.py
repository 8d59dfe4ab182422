"""What became of the job's time, over all its attempts: steps that lasted, and everything else.

    elapsed = productive + lost + startup + restart + checkpoint stalls + evaluation + other

Productive is the time of steps whose result survived, without checkpoint stalls. Steps that were
made after the last checkpoint before a restart are lost, however fast they were. Ranks make the
same steps, so the lowest rank of each attempt tells for all.
"""

from dataclasses import dataclass
from itertools import pairwise

from traincope.store import Attempt
from traincope.store.attempts import summarise
from traincope.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Of a job; times are those of one rank."""

    attempts: tuple[Attempt, ...]
    elapsed_ns: int
    """From the first record of the first attempt to the last of the last."""
    steps_done: int
    """Complete steps, lost ones included."""
    steps_lost: int | None
    """None: it is not known where an attempt went on, for it loaded nothing that the recorder saw."""
    lost_ns: int | None
    startup_ns: int
    """From the first record to the first step."""
    restart_ns: int
    """From the last record of each attempt to the first step of the next."""
    checkpoint_stall_ns: int
    evaluation_ns: int
    productive_ns: int | None

    @property
    def productive_ratio(self) -> float | None:
        """Runtime goodput: the productive share of what elapsed."""
        return None if self.productive_ns is None or not self.elapsed_ns else self.productive_ns / self.elapsed_ns


def goodput(timeline: Timeline) -> Goodput | None:
    """None where no attempt came to a step."""
    attempts = all_attempts(timeline)
    first_step_ns = next((one.first_step_ns for one in attempts if one.first_step_ns is not None), None)
    if first_step_ns is None:
        return None
    losses = [_lost(before, after) for before, after in pairwise(attempts)]
    known = [loss for loss in losses if loss is not None]
    complete = len(known) == len(losses)
    lost_ns = sum(ns for _, ns in known) if complete else None
    steps_ns = sum(one.steps_ns for one in attempts)
    return Goodput(
        attempts=attempts,
        elapsed_ns=attempts[-1].last_ns - attempts[0].began_ns,
        steps_done=sum(one.num_steps for one in attempts),
        steps_lost=sum(steps for steps, _ in known) if complete else None,
        lost_ns=lost_ns,
        startup_ns=first_step_ns - attempts[0].began_ns,
        restart_ns=sum(between_ns(before, after) for before, after in pairwise(attempts)),
        checkpoint_stall_ns=sum(one.checkpoint_stall_ns for one in attempts),
        evaluation_ns=sum(one.evaluation_ns for one in attempts),
        productive_ns=None if lost_ns is None else steps_ns - lost_ns,
    )


def all_attempts(timeline: Timeline) -> tuple[Attempt, ...]:
    """In order, the last in the words of those before it."""
    for rank in timeline.run.ranks:
        main = rank.thread("main")
        if len(main):
            endings = {other.rank: other.info.ending for other in timeline.run.ranks}
            last = summarise(main, names=rank.names, number=rank.attempt, last_ns=timeline.end_ns, endings=endings)
            return (*timeline.run.earlier, last)
    return timeline.run.earlier


def between_ns(before: Attempt, after: Attempt) -> int:
    """From the last record of an attempt to the first step of the next, or to its end where it came to none."""
    resumed_ns = after.first_step_ns if after.first_step_ns is not None else after.last_ns
    return max(resumed_ns - before.last_ns, 0)


def _lost(before: Attempt, after: Attempt) -> tuple[int, int] | None:
    """Steps, and their time, that the next attempt did not go on from; None where nothing tells.

    Nothing is lost of one that came to a clean end. One that loaded a checkpoint went on from the last
    that was saved. One that loaded none, after an attempt that saved none, began anew.
    """
    if before.clean:
        return 0, 0
    if before.kept_steps is None:
        return before.num_steps, before.steps_ns
    if after.loaded:
        return before.num_steps - before.kept_steps, before.steps_ns - before.kept_ns
    return None
