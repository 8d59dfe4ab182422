"""When a training thread evaluated: a regime of its own, no part of any step.

Recorded are forwards without gradients in evaluation mode. Between two of them lies what such a loop does beside:
it fetches batches, sums its losses over ranks, decodes. That is evaluation too, unless anything of the training
lies there: work of a step, a checkpoint, a step's border.
"""

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, Flag, Kind, Phase

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

TRAINING = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.CHECKPOINT_STALL)


def evaluated(main: NDArray[np.void], *, last_ns: int) -> NDArray[np.int64]:
    """(evaluations, start and end) in ns, in order, none overlaps another; `main` has RECORD_DTYPE.

    What was under way when the records ended lasted until `last_ns`.
    """
    on_host = main["flags"] & Flag.DEVICE == 0
    forwards = main[on_host & (main["phase"] == Phase.EVALUATION) & np.isin(main["kind"], (Kind.PHASE, Kind.ACTION))]
    forwards = forwards[np.argsort(forwards["start_ns"], kind="stable")]
    if not len(forwards):
        return np.empty((0, 2), dtype=np.int64)
    starts, reach = forwards["start_ns"], np.maximum.accumulate(_ends_ns(forwards, last_ns))
    apart = (starts[1:] > reach[:-1]) & _trained(main[on_host], reach[:-1], starts[1:], last_ns=last_ns)
    begins, finishes = np.append(True, apart), np.append(apart, True)
    spans: NDArray[np.int64] = np.stack([starts[begins], reach[finishes]], axis=1).astype(np.int64)
    return spans


def _trained(main: NDArray[np.void], begins: Ints, finishes: Ints, *, last_ns: int) -> Bools:
    """Whether each of these intervals meets work of the training, or the border of a step."""
    action = (main["kind"] == Kind.ACTION) & (main["phase"] != Phase.EVALUATION)
    work = main[action | ((main["kind"] == Kind.PHASE) & np.isin(main["phase"], TRAINING))]
    steps = main[main["kind"] == Kind.STEP]
    borders = np.sort(np.concatenate([steps["start_ns"], steps["end_ns"][steps["end_ns"] != OPEN]]))
    begun = np.searchsorted(np.sort(work["start_ns"]), finishes, side="right")
    ended = np.searchsorted(np.sort(_ends_ns(work, last_ns)), begins, side="left")
    passed = np.searchsorted(borders, finishes, side="right") - np.searchsorted(borders, begins, side="left")
    met: Bools = (begun > ended) | (passed > 0)
    return met


def _ends_ns(records: NDArray[np.void], last_ns: int) -> Ints:
    ends: Ints = np.where(records["end_ns"] == OPEN, last_ns, records["end_ns"])
    return ends
