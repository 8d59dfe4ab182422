"""Evaluation intervals of a training thread. Evaluation is not part of a step.

The recorder records forwards without gradients in evaluation mode. Between two of them an evaluation loop fetches
batches, sums its losses over ranks and decodes. That time is evaluation too, unless it contains training: work of a
step, a checkpoint, or a step boundary. A compilation is never evaluation: it serves the training too. Neither is a part
of a step such as a rollout, which may run its model in evaluation mode.
"""

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Ints
from traincope.events import APART, OPEN, Flag, Kind, Phase

TRAINING = (
    *(Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.CHECKPOINT_STALL),
    *APART.values(),
)
NEVER = (Phase.COMPILE, *APART.values())
"""Phases that are no evaluation wherever they are."""


def evaluation_intervals(main: NDArray[np.void], *, last_ns: int) -> NDArray[np.int64]:
    """Array (evaluations, start and end) in ns, in order and disjoint. `main` has RECORD_DTYPE.

    An open record lasts until `last_ns`.
    """
    evaluating = main["phase"] == Phase.EVALUATION
    if not evaluating.any():
        return np.empty((0, 2), dtype=np.int64)
    on_host = main["flags"] & Flag.DEVICE == 0
    forwards = main[on_host & evaluating & np.isin(main["kind"], (Kind.PHASE, Kind.ACTION))]
    forwards = forwards[np.argsort(forwards["start_ns"], kind="stable")]
    if not len(forwards):
        return np.empty((0, 2), dtype=np.int64)
    starts, reach = forwards["start_ns"], np.maximum.accumulate(_ends_ns(forwards, last_ns))
    apart = (starts[1:] > reach[:-1]) & _holds_training(main[on_host], reach[:-1], starts[1:], last_ns=last_ns)
    begins, finishes = np.append(True, apart), np.append(apart, True)
    spans: NDArray[np.int64] = np.stack([starts[begins], reach[finishes]], axis=1).astype(np.int64)
    others = main[on_host & (main["kind"] == Kind.PHASE) & np.isin(main["phase"], NEVER)]
    return _without(spans, _joined(np.stack([others["start_ns"], _ends_ns(others, last_ns)], axis=1).astype(np.int64)))


def _joined(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the union of spans, in order and disjoint."""
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    begins = np.append(True, spans[1:, 0] > reach[:-1])[: len(spans)]
    finishes = np.append(begins[1:], True)[: len(spans)]
    joined: NDArray[np.int64] = np.stack([spans[begins, 0], reach[finishes]], axis=1)
    return joined


def _without(spans: NDArray[np.int64], holes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the parts of disjoint spans outside of disjoint holes. Both are arrays (number, start and end), sorted."""
    if not len(holes):
        return spans
    edges = np.unique(np.concatenate([spans.reshape(-1), holes.reshape(-1)]))
    parts = np.stack([edges[:-1], edges[1:]], axis=1)
    outside: NDArray[np.int64] = parts[_inside(parts, spans) & ~_inside(parts, holes)]
    return outside


def _inside(parts: NDArray[np.int64], spans: NDArray[np.int64]) -> Bools:
    """Mark the parts, which no edge of a span divides, that lie in one of the disjoint spans."""
    at = np.searchsorted(spans[:, 0], parts[:, 0], side="right") - 1
    inside: Bools = (at >= 0) & (parts[:, 1] <= spans[at, 1])
    return inside


def _holds_training(main: NDArray[np.void], begins: Ints, finishes: Ints, *, last_ns: int) -> Bools:
    """True for each interval that overlaps training work or a step boundary."""
    action = (main["kind"] == Kind.ACTION) & (main["phase"] != Phase.EVALUATION)
    work = main[action | ((main["kind"] == Kind.PHASE) & np.isin(main["phase"], TRAINING))]
    steps = main[main["kind"] == Kind.STEP]
    borders = np.sort(np.concatenate([steps["start_ns"], steps["end_ns"][steps["end_ns"] != OPEN]]))
    begun = np.searchsorted(np.sort(work["start_ns"]), finishes, side="right")
    ended = np.searchsorted(np.sort(_ends_ns(work, last_ns)), begins, side="left")
    passed = np.searchsorted(borders, finishes, side="right") - np.searchsorted(borders, begins, side="left")
    overlaps: Bools = (begun > ended) | (passed > 0)
    return overlaps


def _ends_ns(records: NDArray[np.void], last_ns: int) -> Ints:
    ends: Ints = np.where(records["end_ns"] == OPEN, last_ns, records["end_ns"])
    return ends
