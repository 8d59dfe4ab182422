"""What became of the job's time, over all its attempts: steps that lasted, and everything else.

    elapsed = productive + lost + startup + restart + checkpoint stalls + evaluation + other

Each instant is in one of them. What lies before an attempt's first step is startup, or restart, whatever
it did then; after that evaluation comes before checkpoint stalls, these before steps, and other is the rest.
Productive is the time of steps whose result survived. Steps that were made after the last checkpoint before
a restart are lost, however fast they were. Ranks make the same steps, so the lowest rank of each attempt
tells for all.
"""

from collections.abc import Iterator, Sequence
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
    """Of all attempts, each from its first record to its last, and between them."""
    steps_done: int
    """Complete steps, lost ones included."""
    steps_ns: int
    """What they took: productive and lost."""
    steps_lost: int | None
    lost_ns: int | None
    reason: str | None
    """Why it is not known what was lost."""
    startup_ns: int
    """Until the first attempt's first step, or its end where it came to none."""
    restart_ns: int
    """From the last record of each attempt to the first step of the next, or to its end where it came to none."""
    checkpoint_stall_ns: int
    evaluation_ns: int
    other_ns: int
    """Between steps, and in those that were not completed."""

    @property
    def num_ranks(self) -> int | None:
        """Of every attempt that came to a step; None where they differ, or nothing tells."""
        counts = {len(one.endings) for one in self.attempts if one.num_steps}
        return counts.pop() if len(counts) == 1 and 0 not in counts else None

    @property
    def steps_kept(self) -> int | None:
        """Steps whose result survived."""
        return None if self.steps_lost is None else self.steps_done - self.steps_lost

    @property
    def productive_ns(self) -> int | None:
        return None if self.lost_ns is None else self.steps_ns - self.lost_ns

    @property
    def productive_ratio(self) -> float | None:
        """Runtime goodput: the productive share of what elapsed."""
        return None if self.productive_ns is None or not self.elapsed_ns else self.productive_ns / self.elapsed_ns


def goodput(timeline: Timeline) -> Goodput | None:
    """None where no attempt came to a step."""
    return goodput_of(all_attempts(timeline))


def goodput_of(attempts: tuple[Attempt, ...]) -> Goodput | None:
    """Likewise, of attempts in order; the last may be under way."""
    if all(one.first_step_ns is None for one in attempts):
        return None
    losses = [(_lost(before, after), before, after) for before, after in _went_on(attempts)]
    reason = next((_why(before, after) for loss, before, after in losses if loss is None), None)
    known = [loss for loss, _, _ in losses if loss is not None]
    startup_ns, restart_ns = attempts[0].startup_ns, sum(between_ns(*pair) for pair in pairwise(attempts))
    return Goodput(
        attempts=attempts,
        elapsed_ns=startup_ns + restart_ns + sum(one.last_ns - one.began_ns - one.startup_ns for one in attempts),
        steps_done=sum(one.num_steps for one in attempts),
        steps_ns=sum(one.steps_ns for one in attempts),
        steps_lost=None if reason else sum(steps for steps, _ in known),
        lost_ns=None if reason else sum(ns for _, ns in known),
        reason=reason,
        startup_ns=startup_ns,
        restart_ns=restart_ns,
        checkpoint_stall_ns=sum(one.checkpoint_stall_ns for one in attempts),
        evaluation_ns=sum(one.evaluation_ns for one in attempts),
        other_ns=sum(one.other_ns for one in attempts),
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
    """From the last record of an attempt to the first step of the next, or to its end where it came to none.

    Clocks of different hosts may let the next begin sooner: then nothing lies between.
    """
    return max(after.began_ns - before.last_ns, 0) + after.startup_ns


def _went_on(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, Attempt]]:
    """Each attempt that made steps, with the next that went on from them, or began anew: it made some, or loaded."""
    for at, before in enumerate(attempts):
        after = next((one for one in attempts[at + 1 :] if one.loaded or one.num_steps), None)
        if before.num_steps and after is not None:
            yield before, after


def _lost(before: Attempt, after: Attempt) -> tuple[int, int] | None:
    """Steps, and their time, that the next attempt did not go on from; None where nothing tells.

    Nothing is lost of one that came to a clean end. One that loads a checkpoint goes on from the last that was
    saved, and from none of the steps where none was. One that loads none may have begun anew, or have gone on
    from what another library saved: steps are numbered from 0 either way.
    """
    if before.clean:
        return 0, 0
    if not after.loaded:
        return None
    return before.num_steps - (before.kept_steps or 0), before.steps_ns - before.kept_ns


def _why(before: Attempt, after: Attempt) -> str:
    return (
        f"attempt {after.number} loaded no checkpoint that was seen, so nothing tells whether it went on from "
        f"the steps of attempt {before.number}"
    )
