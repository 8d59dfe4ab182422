"""Each rank's part in each collective, as columns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.timeline.numbering import Ints

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One entry a rank's part in a collective, rank by rank. Narrow types: a long run has millions."""

    rank: NDArray[np.int32]
    channel: NDArray[np.int32]
    sequence: NDArray[np.uint32]
    axis_code: NDArray[np.int16]
    operation_code: NDArray[np.int32]
    step: NDArray[np.int32]
    num_bytes: Ints
    start_ns: Ints
    end_ns: Ints
    group_size: NDArray[np.int32]
    bounded: Bools
    """The end is only an upper bound: it was complete before anybody waited for it."""
    evaluating: Bools
    """Begun within an evaluation."""

    @property
    def duration_ns(self) -> Ints:
        return self.end_ns - self.start_ns
