"""Lane of a GPU by the marks that a recorder put on its compute stream: steps, phases, stalls, and why it was idle.

Marks show when the stream reached the begins of steps, and the begins and ends of phases and pipeline actions, not what
it ran in between. So idle time within a phase stays in the phase. Between phases the stream may be idle, or run work
outside all phases. If it had nothing to do when the host queued the next mark, the host decided how long that took: the
time is idle, and belongs to what the host did. Otherwise it stays without an owner.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import AFTER_ALL_NS, Bools, Ints
from traincope.events import NO_PEER, OPEN, Flag, Kind, Phase
from traincope.store import RECORD_DTYPE
from traincope.store.segments.evaluating import evaluation_intervals
from traincope.timeline.collectives.nccl import NcclRuns
from traincope.timeline.device.marked.borders import borders, host_borders, interpolated
from traincope.timeline.device.marked.collectives import collectives
from traincope.timeline.device.marked.running import Running
from traincope.timeline.intervals.painting import ranges
from traincope.timeline.intervals.union import Union
from traincope.timeline.timeline import (
    HOST_THREAD,
    TRAINING_THREAD,
    Marks,
    RankTimeline,
    Step,
)

HOST_WAITS = (Phase.DATA_WAIT, Phase.JOB_WAIT, Phase.CHECKPOINT_STALL, Phase.GC, Phase.COMPILE, Phase.SYNC)
"""Phases of a host in which it queues no work."""
MARKED = (
    *(Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER),
    *(Phase.DATA_WAIT, Phase.CHECKPOINT_STALL, Phase.EVALUATION),
)
"""Phases whose begins and ends a recorder marks, if the training thread, or autograd's thread for it, runs them."""
OWNERS = (Kind.PHASE, Kind.ACTION, Kind.STALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Steps, phases and stalls of a rank by its marks. Arrays of steps have one entry per complete step of the host."""

    rank: RankTimeline
    numbers: Ints
    bordered: Bools
    """True for the steps whose begin and end are marked."""
    measured: Bools
    """True for the steps of these with detail whose phases and actions are all marked."""
    starts_ns: Ints
    ends_ns: Ints
    """Begins and ends on the device."""
    records: NDArray[np.void]
    """Phases, actions and stalls on the device in measured steps, without evaluation. The outer one is first."""
    stalls: NDArray[np.void]
    """Stalls on the device, in all steps."""
    evaluation: NDArray[np.void]
    marks: Marks

    @classmethod
    def of(cls, rank: RankTimeline, *, runs: NcclRuns | None = None) -> "Lane":
        """Collect a rank's marks. `runs`: its collectives by NCCL, if all members of their groups have them."""
        records = np.concatenate([of[of["flags"] & Flag.DEVICE > 0] for of in rank.threads.values()])
        records["flags"] &= ~np.uint16(Flag.DEVICE)
        marked = records[records["kind"] == Kind.STEP]
        numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
        detailed = np.array([step.detailed for step in rank.steps], dtype=bool)
        bordered = np.isin(numbers, marked["step"])
        measured = detailed & bordered & _all_marked(rank, records, numbers)
        starts_ns, ends_ns = borders(rank, numbers, bordered, marked)
        marks = _marks(records)
        running = None if runs is None else Running.of(runs, records[records["kind"] == Kind.STALL])
        if running is not None:
            marks = replace(marks, collectives=running.replacing(marks.collectives))
            records = running.cut(records)
        inside = records[np.isin(records["step"], numbers[measured])]
        inside = inside[::-1]  # an outer phase is written after those in it
        evaluating = inside["phase"] == Phase.EVALUATION
        lane = cls(
            rank=rank,
            numbers=numbers,
            bordered=bordered,
            measured=measured,
            starts_ns=starts_ns,
            ends_ns=ends_ns,
            records=_outer_first(inside[np.isin(inside["kind"], OWNERS) & ~evaluating]),
            stalls=records[records["kind"] == Kind.STALL],
            evaluation=inside[evaluating],
            marks=marks,
        )
        return replace(lane, evaluation=lane._evaluation())

    def why_not_used(self) -> str | None:
        """Return why its marks do not measure the rank's steps; None if they do.

        At least half of the steps with detail must be measured. Without any, half of the steps need their borders.
        """
        detailed, measured = sum(step.detailed for step in self.rank.steps), int(self.measured.sum())
        of, needed = measured, detailed
        if not detailed:
            of, needed = int(self.bordered.sum()), len(self.numbers)
        if of and 2 * of >= needed:
            return None
        return f"marks on the compute stream measure only {of} of {needed} steps of rank {self.rank.rank}"

    @property
    def has_actions(self) -> bool:
        """Return whether its marks show actions of a pipeline."""
        return bool((self.records["kind"] == Kind.ACTION).any())

    def rank_on_device(self, *, runs_on: bool) -> RankTimeline:
        """Return the rank with its GPU's lane. `runs_on`: the run did not end in the last steps."""
        host = self.rank.threads
        num_steps = len(self.numbers) if runs_on else self._num_steps
        steps = tuple(map(self._step, range(num_steps)))
        lane = _outer_first(np.concatenate([self._steps(num_steps), self.records, self.evaluation, *self._idle()]))
        others = {name: records for name, records in host.items() if name != TRAINING_THREAD}
        return replace(
            self.rank,
            threads={TRAINING_THREAD: lane, HOST_THREAD: host[TRAINING_THREAD], **others},
            steps=steps,
            marks=self.marks,
        )

    @property
    def _num_steps(self) -> int:
        """Number of steps without the last one, if its end has no mark, and without the last ones with detail that were
        not measured: the run ended in them.
        """
        count = len(self.numbers)
        count -= bool(count and not self.bordered[count - 1])
        while count and self.rank.steps[count - 1].detailed and not self.measured[count - 1]:
            count -= 1
        return count

    def _step(self, at: int) -> Step:
        return replace(
            self.rank.steps[at],
            start_ns=int(self.starts_ns[at]),
            end_ns=int(self.ends_ns[at]),
            detailed=bool(self.measured[at]),
        )

    def _steps(self, count: int) -> NDArray[np.void]:
        records = _rows(Kind.STEP, self.starts_ns[:count], self.ends_ns[:count])
        records["step"] = self.numbers[:count]
        return records

    def _evaluation(self) -> NDArray[np.void]:
        """Evaluation: in measured steps by marks, in the others by the host, moved like their borders."""
        steps = _rows(Kind.STEP, self.starts_ns, self.ends_ns)
        marked = evaluation_intervals(np.concatenate([steps, self.records, self.evaluation]), last_ns=self.rank.last_ns)
        by_host = evaluation_intervals(self.rank.main, last_ns=self.rank.last_ns)
        borders = host_borders(self.rank)
        step = np.searchsorted(borders[:, 0], by_host[:, 0], side="right") - 1
        moved = by_host[(step >= 0) & ~np.append(self.measured, True)[step]]
        if len(moved):
            device = np.stack([self.starts_ns, self.ends_ns], axis=1).reshape(-1)
            moved = moved + interpolated(moved, borders.reshape(-1), device - borders.reshape(-1))
        both = np.concatenate([marked, moved])
        evaluations = Union.of(both[:, 0], both[:, 1])
        records = _rows(Kind.PHASE, evaluations.starts_ns, evaluations.ends_ns)
        records["phase"] = Phase.EVALUATION
        within = np.searchsorted(self.starts_ns, records["start_ns"], side="right") - 1
        records["step"] = np.append(self.numbers, -1)[within]
        return records

    def _idle(self) -> Iterator[NDArray[np.void]]:
        """Idle time between phases, owned by what the host did."""
        starts, ends, step = self._gaps()
        idle = self.marks.empty_at(ends)
        starts, ends, step = starts[idle], ends[idle], step[idle]
        gaps = _rows(Kind.PHASE, starts, ends)
        gaps["phase"], gaps["step"] = Phase.LAUNCH_GAP, self.numbers[step]
        yield gaps
        waits = self.rank.closed(self.rank.of_kind(Kind.PHASE))
        waits = waits[np.isin(waits["phase"], HOST_WAITS)]
        first = np.searchsorted(ends, waits["start_ns"], side="right")
        last = np.maximum(np.searchsorted(starts, waits["end_ns"], side="left"), first)
        of, gap = np.repeat(np.arange(len(waits)), last - first), ranges(first, last)
        clipped = waits[of]
        clipped["start_ns"] = np.maximum(clipped["start_ns"], starts[gap])
        clipped["end_ns"] = np.minimum(clipped["end_ns"], ends[gap])
        clipped["step"] = self.numbers[step[gap]]
        yield clipped

    def _gaps(self) -> tuple[Ints, Ints, Ints]:
        """Begins, ends and steps (positions) of the time in measured steps that no phase or stall covers."""
        owned = np.concatenate([self.records, self.evaluation])
        busy = Union.of(owned["start_ns"], owned["end_ns"])
        rows = np.flatnonzero(self.measured)
        starts = np.unique(np.concatenate([busy.ends_ns, self.starts_ns[rows]]))
        before = np.searchsorted(busy.starts_ns, starts, side="right") - 1
        free = (before < 0) | (starts >= np.append(busy.ends_ns, 0)[before])
        at = np.searchsorted(self.starts_ns[rows], starts, side="right") - 1
        step = np.append(rows, 0)[at]
        ends = np.minimum(np.append(busy.starts_ns, AFTER_ALL_NS)[before + 1], self.ends_ns[step])
        chosen = free & (at >= 0) & (ends > starts)
        return starts[chosen], ends[chosen], step[chosen]


def _all_marked(rank: RankTimeline, marked: NDArray[np.void], numbers: Ints) -> Bools:
    """True for the steps in which every phase and action of the host has its marks.

    It lacks them if it was captured into a graph, if it ran on another stream, or without a free event.
    """
    on_host = [records[records["flags"] & Flag.DEVICE == 0] for records in rank.threads.values()]
    recomputed = [records[records["phase"] == Phase.RECOMPUTE] for records in on_host]
    main = rank.main[(rank.main["flags"] & Flag.DEVICE == 0) & (rank.main["phase"] != Phase.RECOMPUTE)]
    expected = _count_phases(np.concatenate([main, *recomputed]), numbers)
    complete: Bools = (expected == _count_phases(marked, numbers)).all(axis=1)
    complete &= _count_actions(rank.main, numbers) == _count_actions(marked, numbers)
    return complete


def _count_phases(records: NDArray[np.void], numbers: Ints) -> Ints:
    """Count the records of each marked phase: an array (steps, phases)."""
    records = records[(records["kind"] == Kind.PHASE) & np.isin(records["step"], numbers)]
    counts = np.zeros((len(numbers), len(MARKED)), dtype=np.int64)
    for at, phase in enumerate(MARKED):
        chosen = records["step"][records["phase"] == phase]
        np.add.at(counts[:, at], np.searchsorted(numbers, chosen), 1)
    return counts


def _count_actions(records: NDArray[np.void], numbers: Ints) -> Ints:
    """Count the pipeline's actions in each step."""
    steps = records["step"][(records["kind"] == Kind.ACTION) & np.isin(records["step"], numbers)]
    return np.bincount(np.searchsorted(numbers, steps), minlength=len(numbers))


def _marks(records: NDArray[np.void]) -> Marks:
    """Begins of steps, phases and actions, and ends of steps. Of those together, the one queued first is first."""
    ends = records[records["kind"] == Kind.STEP]
    ends["start_ns"], ends["value"] = ends["end_ns"], ends["tag"]
    begins = records[np.isin(records["kind"], (Kind.STEP, Kind.PHASE, Kind.ACTION))]
    marks = np.concatenate([begins, ends[~np.isin(ends["step"] + 1, begins["step"])]])
    in_order = marks[np.lexsort((marks["kind"], -marks["value"], marks["start_ns"]))]
    return Marks(
        step=in_order["step"].astype(np.int64),
        phase=in_order["phase"].astype(np.int64),
        at_ns=in_order["start_ns"],
        ahead_ns=in_order["value"],
        collectives=collectives(records),
    )


def _rows(kind: Kind, starts_ns: Ints, ends_ns: Ints) -> NDArray[np.void]:
    records = np.zeros(len(starts_ns), dtype=RECORD_DTYPE)
    records["kind"], records["start_ns"], records["end_ns"], records["peer"] = kind, starts_ns, ends_ns, NO_PEER
    return records


def _outer_first(records: NDArray[np.void]) -> NDArray[np.void]:
    """Sort by begin, and put the outer of two that begin together first: the longer one, or the one queued first."""
    closed = records[records["end_ns"] != OPEN]
    ahead_ns = np.where(np.isin(closed["kind"], (Kind.PHASE, Kind.ACTION)), closed["value"], 0)
    order = np.lexsort((-ahead_ns, closed["kind"], -closed["end_ns"], closed["start_ns"]))
    in_order: NDArray[np.void] = closed[order]
    return in_order
