"""Parts: each rank's participation in each collective, as columns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One entry per rank and collective, rank by rank. Types are narrow because a long run has millions of parts."""

    rank: NDArray[np.int32]
    channel: NDArray[np.int32]
    window: NDArray[np.uint32]
    """First step of the window in which the part began."""
    sequence: NDArray[np.uint32]
    torch_count: NDArray[np.int32]
    """Torch's own count on the group plus 1, at its first collective in a window; otherwise 0."""
    axis_code: NDArray[np.int16]
    operation_code: NDArray[np.int32]
    step: NDArray[np.int32]
    num_bytes: Ints
    start_ns: Ints
    end_ns: Ints
    group_size: NDArray[np.int32]
    bounded: Bools
    """The end is only an upper bound: the collective was complete before any thread waited for it."""
    evaluating: Bools
    """The part began within an evaluation."""

    @property
    def duration_ns(self) -> Ints:
        return self.end_ns - self.start_ns
