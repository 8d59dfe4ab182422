"""Collectives on a GPU by the stalls for them."""

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import BEFORE_ALL_NS
from traincope.events import NOT_MARKED, Flag, Kind


def collectives(records: NDArray[np.void]) -> NDArray[np.void]:
    """Find the start and the end of collectives on the GPU, by the stalls for them.

    A collective starts when the compute stream reaches its issue, but not before the previous one of its group has
    ended: they share a stream. The end of a stall is its end, unless it did not stall, or not any more when the host
    queued the mark behind it (`Flag.DONE_BEFORE_WAIT`).
    A stall that begins before the start is not only for this collective, and shows nothing.
    """
    alone = records["flags"] & Flag.POINT_TO_POINT == 0
    known = records[(records["kind"] == Kind.STALL) & alone]
    known = known[np.lexsort((known["sequence"], known["window"], known["group"]))]
    exact = (known["flags"] & Flag.DONE_BEFORE_WAIT == 0) & (known["tag"] != NOT_MARKED)
    issued_ns = known["start_ns"] - known["tag"]
    follows = np.zeros(len(known), dtype=bool)
    follows[1:] = (np.diff(known["sequence"].astype(np.int64)) == 1) & (known["group"][1:] == known["group"][:-1])
    follows[1:] &= known["window"][1:] == known["window"][:-1]
    before_ns = np.concatenate([[BEFORE_ALL_NS], known["end_ns"]])[: len(known)]
    first = (known["window"] == 0) & (known["sequence"] == 0)
    free = first | (follows & (before_ns <= issued_ns))
    queued = (
        follows & (before_ns > issued_ns) & (before_ns <= known["start_ns"]) & np.append(False, exact)[: len(known)]
    )
    result: NDArray[np.void] = known[exact & (free | queued)]
    result["start_ns"] = np.where(queued, before_ns, issued_ns)[exact & (free | queued)]
    result["kind"], result["tag"] = Kind.COLLECTIVE, 0
    return result
