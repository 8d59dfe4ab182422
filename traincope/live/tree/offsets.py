"""Offset between two agents' monotonic clocks, bounded by their messages: none is received before it is sent."""

from collections import deque

import numpy as np

from traincope.timeline.clocks.bounds import Evidence, bounded_offsets
from traincope.timeline.clocks.offsets import Offsets

MAX_EXCHANGES = 64


class ParentClock:
    """The parent's clock, as its answers show it."""

    def __init__(self) -> None:
        self._exchanges: deque[tuple[int, int, int]] = deque(maxlen=MAX_EXCHANGES)

    def add(self, *, sent_ns: int, answered_ns: int, received_ns: int) -> None:
        """Add one exchange: sent and received by this clock, answered in between by the parent's."""
        self._exchanges.append((sent_ns, answered_ns, received_ns))

    def offsets(self) -> Offsets | None:
        """Offsets from this clock to the parent's; None before the first exchange, or if the exchanges disagree."""
        if not self._exchanges:
            return None
        sent, answered, received = np.array(self._exchanges, dtype=np.int64).T
        evidence = Evidence(
            upper_at_ns=sent, upper_ns=answered - sent, lower_at_ns=received, lower_ns=answered - received
        )
        return bounded_offsets(evidence, begin_ns=int(sent[0]), end_ns=int(received[-1]))
