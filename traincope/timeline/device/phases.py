"""Phase of each work, by the ranges that were open on its launching thread when it was launched.

The innermost range decides, but an evaluation contains all that is launched in it. Inside a range of the autograd
engine, forward operators and ranges recompute. Work launched outside all known ranges has no phase: a guess would be
wrong for copies of batches and for metrics.
"""

import numpy as np

from traincope.arrays import Ints
from traincope.events import Phase
from traincope.store.side_tables.traces import Trace
from traincope.timeline.device.ranges import Ranges, autograd_ranges, differentiated, phase_ranges
from traincope.timeline.device.works import NO_CALL, Works
from traincope.timeline.intervals.painting import ABSENT


def phases(trace: Trace, works: Works) -> Ints:
    """Return the `Phase` of each work, OTHER_COMPUTE if it is unknown."""
    result = np.full(len(works), Phase.OTHER_COMPUTE, dtype=np.int64)
    named, numbered, automatic = phase_ranges(trace), differentiated(trace), autograd_ranges(trace)
    evaluation = named.only((Phase.EVALUATION,))
    for thread in np.unique(works.thread[works.thread != NO_CALL]).tolist():
        chosen = np.flatnonzero(works.thread == thread)
        launched_ns = works.launched_ns[chosen]
        phase, began_ns = _innermost(named, thread, launched_ns)
        operator, operator_ns = _innermost(numbered, thread, launched_ns)
        node, node_ns = _innermost(automatic, thread, launched_ns)
        again = (node > 0) & (
            ((phase == Phase.FORWARD) & (began_ns >= node_ns))
            | ((phase == Phase.BACKWARD) & (operator == Phase.FORWARD) & (operator_ns >= began_ns))
        )
        known = np.where(phase > 0, phase, operator)
        found = np.where(again, Phase.RECOMPUTE, np.where(known > 0, known, Phase.OTHER_COMPUTE))
        evaluating = evaluation.innermost(thread, launched_ns) != ABSENT
        result[chosen] = np.where(evaluating, Phase.EVALUATION, found)
    return result


def _innermost(ranges: Ranges, thread: int, times_ns: Ints) -> tuple[Ints, Ints]:
    """Phase and begin of the innermost range at each instant; 0 without one."""
    at = ranges.innermost(thread, times_ns)
    inside = at != ABSENT
    return (
        np.where(inside, np.append(ranges.phase, 0)[at], 0),
        np.where(inside, np.append(ranges.start_ns, 0)[at], 0),
    )
