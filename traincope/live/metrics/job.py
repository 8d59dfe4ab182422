"""Time of the job so far and its parts, as the node's lowest rank sees them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.efficiency.goodput import Goodput, goodput_of
from traincope.analysis.faults.anomalies.bad_steps import rollbacks_by_rank
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.marks import APART_NS
from traincope.events import OPEN, Kind, Phase
from traincope.live.metrics.step_sums import StepSums
from traincope.live.window import Window
from traincope.metrics.labels import checkpoint_end_ns
from traincope.store import Attempt, LauncherNote
from traincope.store.job.attempts import LOADING, read_resumed_step
from traincope.store.segments.evaluating import evaluation_intervals
from traincope.store.side_tables.rows import Row
from traincope.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The current attempt, and those before it."""

    earlier: tuple[Attempt, ...] = ()
    notes: tuple[LauncherNote, ...] = ()
    """Ends of the earlier ones, as the launcher saw them."""
    attempt: int = 0
    rank: int | None = None
    """The rank whose steps are counted."""
    began_ns: int | None = None
    """Wall time, as all times here."""
    first_step_ns: int | None = None
    steps: StepSums = field(default_factory=StepSums)
    resumed_step: int | None = None
    """Steps that its state had had when it continued, as the training declared."""
    checkpoint_stall_ns: int = 0
    evaluation_ns: int = 0
    loaded: bool = False
    """True if a checkpoint was loaded before the first step."""
    loaded_later: bool = False
    """True if one was loaded after the begin of the first step, which a rollback does too."""
    num_saved: int = 0
    """Number of saved checkpoints."""
    saved_ns: int | None = None
    """End of the last checkpoint."""
    saved_step: int | None = None
    """Step of the last checkpoint, if it was inside a step."""

    def current_attempt(self, *, last_ns: int) -> Attempt | None:
        """The current attempt; None before its start. `last_ns`: time of its last event."""
        if self.began_ns is None:
            return None
        return Attempt(
            number=self.attempt,
            began_ns=self.began_ns,
            first_step_ns=self.first_step_ns,
            last_ns=max(last_ns, self.began_ns),
            num_steps=self.steps.total.steps + self.steps.undone.steps,
            steps_ns=self.steps.total.ns + self.steps.undone.ns,
            kept_steps=None,
            kept_ns=0,
            loaded=self.loaded or (self.loaded_later and not self.steps.rollbacks),
            checkpoint_stall_ns=self.checkpoint_stall_ns,
            evaluation_ns=self.evaluation_ns,
            resumed_step=self.resumed_step,
            rollbacks=self.steps.rollbacks,
            undone_steps=self.steps.undone.steps,
            undone_ns=self.steps.undone.ns,
            skipped_steps=self.steps.total.skipped_steps,
            skipped_ns=self.steps.total.skipped_ns,
        )

    def goodput(self, *, last_ns: int) -> Goodput | None:
        """Goodput so far; None before the first step of all attempts, and if undone steps are too old to be known."""
        if not self.steps.complete:
            return None
        now = self.current_attempt(last_ns=last_ns)
        return goodput_of(self.earlier if now is None else (*self.earlier, now))


def advance_job(job: Job, window: Window, *, restored: tuple[Row, ...]) -> Job:
    """Add a window to `job`."""
    if job.rank is None and window.ranks:
        job = replace(job, rank=window.ranks[0].rank, attempt=window.attempt)
    if job.began_ns is None:
        job = replace(
            job, began_ns=next((status.began_wall_ns for status in window.ranks if status.rank == job.rank), None)
        )
    job = _with_rows(job, tuple(row for row in (*restored, *window.rows) if row.rank == job.rank))
    faults = (*window.earlier, *window.faults)
    for fault in faults:
        job = _with_mark(job, fault, lasted_ns=_lasted_ns(fault, window, rank=job.rank))
    if window.analysis is not None:
        job = _with_declared(job, window.analysis.timeline, faults)
    return replace(job, steps=job.steps.settled())


def _with_rows(job: Job, rows: tuple[Row, ...]) -> Job:
    starts = [row.start_ns for row in rows] + ([] if job.first_step_ns is None else [job.first_step_ns])
    return replace(
        job,
        first_step_ns=min(starts, default=None),
        steps=job.steps.with_rows(sorted(rows, key=lambda row: row.step)),
    )


def _lasted_ns(mark: Fault, window: Window, *, rank: int | None) -> int:
    """Part of a checkpoint or evaluation that the rank was in; all of it if the window has no records of the rank."""
    timelines = () if window.analysis is None else window.analysis.timeline.ranks
    main = next((timeline.main for timeline in timelines if timeline.rank == rank), None)
    if main is None or mark.kind not in (FaultKind.CHECKPOINT, FaultKind.EVALUATION):
        return mark.lasted_ns or 0
    end_ns = mark.until_ns
    spans = evaluation_intervals(main, last_ns=end_ns) if mark.kind is FaultKind.EVALUATION else _stalls(main, end_ns)
    parts: NDArray[np.int64] = np.minimum(spans[:, 1], end_ns) - np.maximum(spans[:, 0], mark.at_ns)
    return int(parts.clip(min=0).sum())


def _stalls(main: NDArray[np.void], last_ns: int) -> NDArray[np.int64]:
    """(start, end) of each checkpoint stall; an open one lasts until `last_ns`."""
    stalls = main[(main["kind"] == Kind.PHASE) & (main["phase"] == Phase.CHECKPOINT_STALL)]
    ends = np.where(stalls["end_ns"] == OPEN, last_ns, stalls["end_ns"])
    return np.stack([stalls["start_ns"], ends], axis=1).astype(np.int64)


def _with_mark(job: Job, mark: Fault, *, lasted_ns: int) -> Job:
    ended_ns = checkpoint_end_ns(mark)
    if ended_ns is not None:
        job = _saved(job, mark, ended_ns=ended_ns)
    if mark.kind is FaultKind.SKIPPED_STEP and mark.step is not None:
        return replace(job, steps=job.steps.with_skipped(mark.step))
    if mark.kind not in (FaultKind.CHECKPOINT, FaultKind.EVALUATION):
        return job
    in_training = job.first_step_ns is not None and mark.at_ns >= job.first_step_ns
    length_ns = lasted_ns if in_training else 0
    if mark.kind == FaultKind.EVALUATION:
        return replace(job, evaluation_ns=job.evaluation_ns + length_ns)
    job = replace(job, checkpoint_stall_ns=job.checkpoint_stall_ns + length_ns)
    if mark.step is not None:
        job = replace(job, steps=job.steps.with_stall(mark.step, length_ns))
    loading = mark.what.partition(" ")[0] == LOADING
    return replace(
        job,
        loaded=job.loaded or (loading and not in_training),
        loaded_later=job.loaded_later or (loading and in_training),
    )


def _with_declared(job: Job, timeline: Timeline, faults: Sequence[Fault]) -> Job:
    """Add what the training declared: the step from which it continued, and new rollbacks."""
    resumed = job.resumed_step
    for rank in timeline.ranks:
        if rank.rank == job.rank and resumed is None:
            details = next(records.details for records in timeline.run.ranks if records.rank == rank.rank)
            resumed = read_resumed_step(rank.main, names=rank.names, details=details)
    steps, new = job.steps, {fault.step for fault in faults if fault.kind is FaultKind.ROLLBACK}
    for rollback in rollbacks_by_rank(timeline).get(-1 if job.rank is None else job.rank, []) if new else ():
        if rollback.after - 1 in new:
            steps = steps.with_rollback(rollback)
    return replace(job, resumed_step=resumed, steps=steps)


def _saved(job: Job, mark: Fault, *, ended_ns: int) -> Job:
    """Count a checkpoint once, even if its ranks appear in different windows."""
    if job.saved_ns is not None and _is_same(job.saved_ns, job.saved_step, mark):
        return replace(job, saved_ns=max(job.saved_ns, ended_ns))
    return replace(job, saved_ns=ended_ns, saved_step=mark.step, num_saved=job.num_saved + 1)


def _is_same(saved_ns: int, saved_step: int | None, mark: Fault) -> bool:
    if mark.step is None:
        return mark.at_ns < saved_ns + APART_NS
    return mark.step == saved_step or mark.at_ns < saved_ns
