"""Pipeline actions of a GPU: the compute that the host launched within an action's annotation.

torch's multi-stage schedules annotate each action with its notation: `PP:1F0` is stage 1's forward of microbatch 0. An
action lasts from its first compute kernel to its last one, so it contains no wait for a receive.
"""

import re
from dataclasses import dataclass

import numpy as np

from traincope.arrays import Ints
from traincope.events import Phase
from traincope.store.side_tables.traces import Trace
from traincope.timeline.device.ranges import NAMED
from traincope.timeline.device.works import Works

ANNOTATION = re.compile(r"PP:(\d{1,6})([FBIW])(\d{1,6})")
"""Name of an action that computes. The order does not contain sends, receives and unsharding."""
OVERLAPPED = re.compile(r"PP:\(.*\)OVERLAP_F_B")
"""Name of a forward and a backward under one annotation, as DualPipe-V runs them. Their kernels are not separable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceActions:
    """One entry per action, in order of begin on the host."""

    start_ns: Ints
    end_ns: Ints
    kind: tuple[str, ...]
    """F, B, I or W (`plan.pipeline.actions`)."""
    stage: Ints
    microbatch: Ints
    evaluates: tuple[bool, ...]
    """True for an action of an evaluation."""


def device_actions(trace: Trace, works: Works, *, phase: Ints) -> DeviceActions:
    """Find the actions. Without annotations, or if some are overlapped, the result is empty. `phase`: of each work.

    An action whose annotation launched no compute is left out.
    """
    overlapped = any(OVERLAPPED.fullmatch(name) for name in trace.names)
    matches = [None if overlapped else ANNOTATION.fullmatch(name) for name in trace.names] or [None]
    annotated = np.array([match is not None for match in matches])
    rows = np.flatnonzero(trace.of_category(*NAMED) & annotated[trace.name])
    computes = np.flatnonzero(works.compute)
    computes = computes[np.argsort(works.launched_ns[computes], kind="stable")]
    launched_ns = works.launched_ns[computes]
    first, last = (
        np.searchsorted(launched_ns, times, side="left") for times in (trace.start_ns[rows], trace.end_ns[rows])
    )
    chosen = np.flatnonzero(last > first)
    inside = [computes[first[at] : last[at]] for at in chosen.tolist()]
    named = [match for at in chosen.tolist() if (match := matches[trace.name[rows[at]]]) is not None]
    return DeviceActions(
        start_ns=np.array([works.start_ns[each].min() for each in inside], dtype=np.int64),
        end_ns=np.array([works.end_ns[each].max() for each in inside], dtype=np.int64),
        kind=tuple(match[2] for match in named),
        stage=np.array([int(match[1]) for match in named], dtype=np.int64),
        microbatch=np.array([int(match[3]) for match in named], dtype=np.int64),
        evaluates=tuple(bool((phase[each] == Phase.EVALUATION).all()) for each in inside),
    )
