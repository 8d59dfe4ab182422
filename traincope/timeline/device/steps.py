"""Steps on the GPU: from the time when the compute stream has done all earlier work to that of the next step.

This is what an event on the compute stream measures at the host's begin of a step.
"""

import re
from dataclasses import dataclass

import numpy as np

from traincope.arrays import AFTER_ALL_NS, BEFORE_ALL_NS, Ints
from traincope.events import NO_STEP
from traincope.store.side_tables.traces import Trace
from traincope.timeline.device.ranges import ANNOTATION, NAMED
from traincope.timeline.device.works import NO_CALL, Works, compute_stream

PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,9})")
MIN_ALIKE, MOST = 3, 0.8
"""Number of annotations of one name, and their share of the time of all annotations, from which they are like steps."""
ON_GPU = "gpu_user_annotation"
"""Category of the time on a stream from the first to the last work that was launched within an annotation."""
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#.*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSteps:
    """Steps in order. Each ends where the next begins, if that follows at once."""

    number: Ints
    launched_ns: Ints
    """The host's begin of each step."""
    start_ns: Ints
    end_ns: Ints
    guessed: bool
    """The trace marks no steps: each one ends with an optimizer's step."""
    own_numbers: bool
    """The numbers are counts in this trace, so that those of other traces may mean other steps."""

    def at(self, times_ns: Ints) -> Ints:
        """Return the position of the step that contains each instant; -1 outside all steps."""
        position = np.searchsorted(self.start_ns, times_ns, side="right") - 1
        inside = (position >= 0) & (times_ns < np.append(self.end_ns, 0)[position])
        return np.where(inside, position, -1)

    def launched_in(self, times_ns: Ints) -> Ints:
        """Return the number of the host's step at each instant, NO_STEP before the first."""
        position = np.searchsorted(self.launched_ns, times_ns, side="right") - 1
        return np.where(position >= 0, np.append(self.number, NO_STEP)[position], NO_STEP)


def device_steps(trace: Trace, works: Works, *, marker: str | None = None) -> DeviceSteps:
    """Find the steps by the ranges named `marker`; without it by the profiler's marks, those of the host or else of the
    GPU, otherwise by the optimizer's steps. They may be absent.
    """
    number, rows = _marked(trace) if marker is None else _named_alike(trace, marker)
    begin_ns, end_ns = trace.start_ns[rows], trace.end_ns[rows]
    if not len(number) and marker is None:
        number, begin_ns, end_ns = _marked_on_gpu(trace, works)
    guessed = not len(number) and marker is None
    if guessed:
        ends = trace.end_ns[_optimizer_steps(trace)]
        number, begin_ns, end_ns = np.arange(1, max(len(ends), 1)), ends[:-1], ends[1:]
    last = len(number) - 1
    adjacent = np.append(number[1:] == number[:-1] + 1, False)[: last + 1]
    following_ns = np.where(adjacent, np.append(begin_ns[1:], 0)[: last + 1], end_ns)
    return DeviceSteps(
        number=number,
        launched_ns=begin_ns,
        start_ns=_done_ns(trace, works, begin_ns),
        end_ns=_done_ns(trace, works, following_ns),
        guessed=guessed,
        own_numbers=guessed or marker is not None,
    )


def _done_ns(trace: Trace, works: Works, times_ns: Ints) -> Ints:
    """Return when the compute stream has done all that was launched before each instant, but not before it."""
    on_stream = np.flatnonzero(trace.lane[works.row] == compute_stream(trace, works))
    order = on_stream[np.argsort(works.launched_ns[on_stream], kind="stable")]
    reach = np.concatenate([times_ns[:0], [np.iinfo(np.int64).min], np.maximum.accumulate(works.end_ns[order])])
    done_ns: Ints = np.maximum(times_ns, reach[np.searchsorted(works.launched_ns[order], times_ns, side="left")])
    return done_ns


def stepping_thread(trace: Trace, *, marker: str | None = None) -> int:
    """Return the lane of the thread that marks the steps or runs the optimizer; NO_CALL without steps."""
    _, rows = _marked(trace) if marker is None else _named_alike(trace, marker)
    if not len(rows) and marker is None:
        rows = _optimizer_steps(trace)
    return int(trace.lane[rows[0]]) if len(rows) else NO_CALL


def marked_again(trace: Trace) -> tuple[int, ...]:
    """Return the steps that the profiler marks again after their end, as in a file of two profiles."""
    every, rows = _marks(trace, *NAMED)
    number, first = _firsts(trace)
    others = ~np.isin(rows, first)
    every, rows = every[others], rows[others]
    ends_ns = dict(zip(number.tolist(), trace.end_ns[first].tolist(), strict=True))
    pairs = zip(every.tolist(), trace.start_ns[rows].tolist(), strict=True)
    return tuple(sorted({each for each, start_ns in pairs if start_ns >= ends_ns[each]}))


def marked_after(trace: Trace) -> tuple[int, ...]:
    """Return the steps that the profiler marks only after a step with a higher number, as in a file of two profiles."""
    return tuple(sorted(set(_firsts(trace)[0].tolist()) - set(_marked(trace)[0].tolist())))


def marked_by_several(trace: Trace) -> tuple[int, ...]:
    """Return the steps that several processes mark, as in a file of the profiles of two ranks."""
    every, rows = _marks(trace, *NAMED)
    marks = zip(every.tolist(), trace.lane[rows].tolist(), strict=True)
    processes: dict[int, set[str]] = {}
    for number, lane in marks:
        processes.setdefault(number, set()).add(trace.lanes[lane].process)
    return tuple(sorted(number for number, of_step in processes.items() if len(of_step) > 1))


def like_steps(trace: Trace) -> str | None:
    """Return the name of the annotations that cover most of their thread one after the other, as steps do; None if
    none covers MOST of it.
    """
    rows = np.flatnonzero(trace.of_category(ANNOTATION))
    if len(rows) < MIN_ALIKE:
        return None
    first_ns, last_ns = int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max())
    names = trace.name[rows]
    covered_ns = np.zeros(len(trace.names), dtype=np.int64)
    np.add.at(covered_ns, names, trace.duration_ns[rows])
    is_long = covered_ns >= max(MOST * (last_ns - first_ns), 1)
    for number in np.flatnonzero(is_long & (np.bincount(names, minlength=len(is_long)) >= MIN_ALIKE)).tolist():
        same = rows[names == number]
        follows = (trace.start_ns[same][1:] >= trace.end_ns[same][:-1]).all()
        if follows and len(set(trace.lane[same].tolist())) == 1:
            return trace.names[number]
    return None


def _marks(trace: Trace, *categories: str) -> tuple[Ints, Ints]:
    """Number and row of each of the profiler's marks of these categories."""
    matches = map(PROFILER_STEP.fullmatch, (*trace.names, ""))
    of_name = np.array([int(match[1]) if match else NO_STEP for match in matches], dtype=np.int64)
    rows = np.flatnonzero(trace.of_category(*categories) & (of_name[trace.name] != NO_STEP))
    return of_name[trace.name[rows]], rows


def _marked_on_gpu(trace: Trace, works: Works) -> tuple[Ints, Ints, Ints]:
    """Number of each step that the GPU's streams mark, when its first work was launched, and just after its last."""
    numbers, rows = _marks(trace, ON_GPU)
    first_ns: dict[int, int] = {}
    after_ns: dict[int, int] = {}
    for lane in np.unique(trace.lane[works.row]).tolist():
        on_stream = np.flatnonzero(trace.lane[works.row] == lane)
        marks = trace.lane[rows] == lane
        begins = np.searchsorted(works.start_ns[on_stream], trace.start_ns[rows[marks]], side="left")
        ends = np.searchsorted(works.start_ns[on_stream], trace.end_ns[rows[marks]], side="left")
        for number, begin, end in zip(numbers[marks].tolist(), begins.tolist(), ends.tolist(), strict=True):
            launched_ns = works.launched_ns[on_stream[begin:end]]
            if len(launched_ns):
                first_ns[number] = min(first_ns.get(number, AFTER_ALL_NS), int(launched_ns.min()))
                after_ns[number] = max(after_ns.get(number, BEFORE_ALL_NS), int(launched_ns.max()) + 1)
    number = np.array(sorted(first_ns, key=first_ns.__getitem__), dtype=np.int64)
    begin_ns, end_ns = (
        np.array([each[step] for step in number.tolist()], dtype=np.int64) for each in (first_ns, after_ns)
    )
    rising = number == np.maximum.accumulate(number) if len(number) else number.astype(bool)
    return number[rising], begin_ns[rising], end_ns[rising]


def _marked(trace: Trace) -> tuple[Ints, Ints]:
    """Number and row of the profiler's steps, in order. Of two marks with one number, the first counts; and none does
    that follows a higher number.
    """
    number, rows = _firsts(trace)
    rising = number == np.maximum.accumulate(number) if len(number) else number.astype(bool)
    return number[rising], rows[rising]


def _firsts(trace: Trace) -> tuple[Ints, Ints]:
    """Number and row of the first mark of each step, in order of time."""
    every, rows = _marks(trace, *NAMED)
    number, first = np.unique(every, return_index=True)
    in_order = np.argsort(trace.start_ns[rows[first]], kind="stable")
    return number[in_order], rows[first][in_order]


def _named_alike(trace: Trace, marker: str) -> tuple[Ints, Ints]:
    """Number, from 1 on, and row of the ranges of this name. One inside another does not count."""
    rows = np.flatnonzero(trace.of_category(*NAMED) & np.array([name == marker for name in trace.names])[trace.name])
    reach = np.maximum.accumulate(trace.end_ns[rows])
    rows = rows[np.append(True, trace.start_ns[rows][1:] >= reach[:-1])[: len(rows)]]
    return np.arange(1, len(rows) + 1), rows


def _optimizer_steps(trace: Trace) -> Ints:
    """Rows of the optimizer's steps. Of several optimizers, those of the one that steps last."""
    optimizers = np.array([OPTIMIZER_STEP.fullmatch(name) is not None for name in trace.names] or [False])
    rows = np.flatnonzero(trace.of_category(*NAMED) & optimizers[trace.name])
    last: Ints = rows[trace.name[rows] == trace.name[rows[-1:]]]
    return last
