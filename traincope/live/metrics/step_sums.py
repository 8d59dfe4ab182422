"""Steps of the current attempt and their time, with the parts that updated nothing or that rollbacks undid."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from traincope.store.job.attempts import Rollback
from traincope.store.side_tables.rows import Row

MAX_STANDING = 8_192
"""Latest rows that are kept, because a rollback may undo them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """A row that no rollback has undone."""

    step: int
    num_steps: int
    ns: int
    """Without checkpoint stalls and evaluations."""
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Steps, their time, and the part of both that updated nothing."""

    steps: int = 0
    ns: int = 0
    skipped_steps: int = 0
    skipped_ns: int = 0

    def plus(self, rows: Iterable[_Standing]) -> "Sum":
        steps, ns, skipped_steps, skipped_ns = self.steps, self.ns, self.skipped_steps, self.skipped_ns
        for row in rows:
            steps, ns = steps + row.num_steps, ns + row.ns
            if row.skipped:
                skipped_steps, skipped_ns = skipped_steps + row.num_steps, skipped_ns + row.ns
        return Sum(steps=steps, ns=ns, skipped_steps=skipped_steps, skipped_ns=skipped_ns)


_NONE = Sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """Sums over the rows of one rank. Call `settled` once all marks of their window are in."""

    total: Sum = _NONE
    """All steps that no rollback undid, as of the last call of `settled`."""
    undone: Sum = _NONE
    rollbacks: tuple[Rollback, ...] = ()
    complete: bool = True
    """False if a rollback undid more than the latest `MAX_STANDING` rows."""
    old: Sum = _NONE
    """Rows before those in `standing`."""
    standing: tuple[_Standing, ...] = ()

    def with_rows(self, rows: Iterable[Row]) -> "StepSums":
        new = (
            _Standing(
                step=row.step,
                num_steps=row.num_steps,
                ns=row.wall_ns - (0 if row.merged is None else row.terms.get("checkpoint_stall", 0)),
            )
            for row in rows
        )
        return replace(self, standing=(*self.standing, *new))

    def with_stall(self, step: int, ns: int) -> "StepSums":
        """Take a checkpoint stall out of its step. The row's term is less if something else ran during the stall."""
        at = self._place(step)
        return self if at is None else self._with(at, replace(self.standing[at], ns=max(self.standing[at].ns - ns, 0)))

    def with_skipped(self, step: int) -> "StepSums":
        at = self._place(step)
        return self if at is None else self._with(at, replace(self.standing[at], skipped=True))

    def with_rollback(self, rollback: Rollback) -> "StepSums":
        """Take out the latest rows, which the rollback undid. It may also undo steps of earlier attempts."""
        cut = next((at for at, row in enumerate(self.standing) if row.step >= rollback.after), len(self.standing))
        begin, left = cut, rollback.undone
        while begin > 0 and left > 0:
            begin -= 1
            left -= self.standing[begin].num_steps
        return replace(
            self,
            undone=self.undone.plus(self.standing[begin:cut]),
            rollbacks=(*self.rollbacks, rollback),
            complete=self.complete and (left <= 0 or self.old == _NONE),
            standing=(*self.standing[:begin], *self.standing[cut:]),
        )

    def settled(self) -> "StepSums":
        """Add up, and let go of rows that are too old."""
        cut = max(len(self.standing) - MAX_STANDING, 0)
        old, kept = self.old.plus(self.standing[:cut]), self.standing[cut:]
        return replace(self, total=old.plus(kept), old=old, standing=kept)

    def _place(self, step: int) -> int | None:
        """Position of a single step's row."""
        for at in range(len(self.standing) - 1, -1, -1):
            if self.standing[at].step <= step:
                return at if self.standing[at].step == step else None
        return None

    def _with(self, at: int, row: _Standing) -> "StepSums":
        rows: Sequence[_Standing] = self.standing
        return replace(self, standing=(*rows[:at], row, *rows[at + 1 :]))
