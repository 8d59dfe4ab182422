"""Ranges of the host in a trace: operators, annotations and calls that tell what a thread did, by their names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincope.arrays import Bools, Ints
from traincope.events import Phase
from traincope.store.side_tables.traces import HOST_OPERATOR, PYTHON_FUNCTION, UNKNOWN, Trace
from traincope.timeline.device.works import NO_CALL, RUNTIME, Works
from traincope.timeline.intervals.painting import ABSENT, owners

ANNOTATION = "user_annotation"
NAMED = (HOST_OPERATOR, ANNOTATION)
"""torch before 1.13 wrote annotations as operators."""
AUTOGRAD = "autograd::engine::evaluate_function: "
"""Begin of the names of ranges in which the autograd engine runs one node of the graph."""

PHASES: Mapping[Phase, re.Pattern[str]] = {
    Phase.EVALUATION: re.compile(r"(## )?(evaluation|validation)( ##)?"),
    Phase.OPTIMIZER: re.compile(r"Optimizer\.(step|zero_grad)#.*|## (optimizer|zero_grad) ##", re.DOTALL),
    Phase.BACKWARD: re.compile(rf"{AUTOGRAD}.*|## backward ##", re.DOTALL),
    Phase.FORWARD: re.compile(r"(DistributedDataParallel|FullyShardedDataParallel)\.forward|## forward ##"),
}
"""Phase -> names of the ranges whose kernels belong to it."""

ACTIVITIES: Mapping[Phase, tuple[tuple[str, ...], re.Pattern[str]]] = {
    Phase.DATA_WAIT: (NAMED, re.compile(r"enumerate\(DataLoader\)#.*|## (data_load|wait_for_batch) ##", re.DOTALL)),
    Phase.CHECKPOINT_STALL: (NAMED, re.compile(r"(save_)?checkpoint|## (save_)?checkpoint ##")),
    Phase.GC: ((*NAMED, PYTHON_FUNCTION), re.compile(r"gc|## gc ##|<built-in function collect>")),
    Phase.COMPILE: (
        (*NAMED, PYTHON_FUNCTION),
        re.compile(
            r"compile|(.*/)?torch/_dynamo/convert_frame\.py\(\d+\): _compile"
            r"|(_compile\..*)?compile_inner \(dynamo_timed\)"
        ),
    ),
    Phase.SYNC: (
        RUNTIME,
        re.compile(
            r"(cuda|hip)(Device|Stream|Event)Synchronize|(cuda|hip)Memcpy(WithStream)?"
            r"|urQueueFinish|urEventWait|ze\w+Synchronize"
        ),
    ),
}
"""Phase -> categories and names of what a thread does while it launches nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Chosen ranges of a trace, in order of start, with the longest first if starts are equal."""

    row: Ints
    start_ns: Ints
    end_ns: Ints
    thread: Ints
    phase: Ints
    """The `Phase` that each range stands for."""

    def innermost(self, thread: int, times_ns: Ints) -> Ints:
        """Return, for each instant, the range of the thread that is open and began last; ABSENT without one."""
        chosen = np.flatnonzero((self.thread == thread) & (self.end_ns > self.start_ns))
        starts, ends = self.start_ns[chosen], self.end_ns[chosen]
        borders = np.unique(np.concatenate([starts, ends]))
        owner = np.append(owners(borders, starts, ends), ABSENT).astype(np.int64)
        at = np.searchsorted(borders, times_ns, side="right") - 1
        found = np.where(at >= 0, np.append(owner, ABSENT)[at], ABSENT)
        return np.where(found == ABSENT, ABSENT, np.append(chosen, ABSENT)[found])

    def only(self, phases: tuple[Phase, ...]) -> "Ranges":
        return self._chosen(np.isin(self.phase, phases))

    def _chosen(self, chosen: Bools) -> "Ranges":
        columns = (self.row, self.start_ns, self.end_ns, self.thread, self.phase)
        row, start_ns, end_ns, thread, phase = (column[chosen] for column in columns)
        return Ranges(row=row, start_ns=start_ns, end_ns=end_ns, thread=thread, phase=phase)


def innermost(trace: Trace, chosen: Bools, works: Works, at: Ints) -> Ints:
    """Return the row of the innermost chosen event around the launch of each work in `at`; ABSENT without one."""
    ranges = _ranges(trace, chosen.astype(np.int64))
    result = np.full(len(at), ABSENT, dtype=np.int64)
    for thread in np.unique(works.thread[at]).tolist():
        of_thread = np.flatnonzero(works.thread[at] == thread)
        if thread != NO_CALL:
            found = ranges.innermost(thread, works.launched_ns[at[of_thread]])
            result[of_thread] = np.where(found == ABSENT, ABSENT, np.append(ranges.row, ABSENT)[found])
    return result


def phase_ranges(trace: Trace) -> Ranges:
    """Collect the ranges whose kernels belong to a phase."""
    codes = np.zeros(len(trace), dtype=np.int64)
    for phase, pattern in PHASES.items():
        codes[_named(trace, NAMED, pattern)] = phase
    return _ranges(trace, codes)


def activity_ranges(trace: Trace) -> Ranges:
    """Collect the activities of all threads, evaluation among them."""
    codes = np.zeros(len(trace), dtype=np.int64)
    for phase, (categories, pattern) in ACTIVITIES.items():
        codes[_named(trace, categories, pattern)] = phase
    codes[_named(trace, NAMED, PHASES[Phase.EVALUATION])] = Phase.EVALUATION
    return _ranges(trace, codes)


def differentiated(trace: Trace) -> Ranges:
    """Collect the operators that autograd numbers: BACKWARD for those of the backward pass, FORWARD for others."""
    numbered = trace.of_category(HOST_OPERATOR) & (trace.sequence != UNKNOWN)
    automatic = _named(trace, NAMED, re.compile(rf"{AUTOGRAD}.*", re.DOTALL))
    codes = np.where(trace.forward_thread > 0, Phase.BACKWARD, Phase.FORWARD)
    return _ranges(trace, np.where(numbered & ~automatic, codes, 0))


def autograd_ranges(trace: Trace) -> Ranges:
    """Collect the ranges in which the autograd engine runs one node."""
    automatic = _named(trace, NAMED, re.compile(rf"{AUTOGRAD}.*", re.DOTALL))
    return _ranges(trace, np.where(automatic, np.int64(Phase.BACKWARD), 0))


def _named(trace: Trace, categories: tuple[str, ...], pattern: re.Pattern[str]) -> Bools:
    matches = np.array([pattern.fullmatch(name) is not None for name in trace.names] or [False])
    chosen: Bools = trace.of_category(*categories) & matches[trace.name]
    return chosen


def _ranges(trace: Trace, codes: Ints) -> Ranges:
    rows = np.flatnonzero(codes)
    rows = rows[np.lexsort((-trace.end_ns[rows], trace.start_ns[rows]))]
    return Ranges(
        row=rows,
        start_ns=trace.start_ns[rows],
        end_ns=trace.end_ns[rows],
        thread=trace.lane[rows].astype(np.int64),
        phase=codes[rows],
    )
