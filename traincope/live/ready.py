"""Which steps can be reduced: those whose records no rank will change any more.

A wait is split from its transfer by the records of all siblings, so a step is left until all of them have finished
it; and until they have finished the next one, too, or a second has passed in which every collective that was begun
in it has ended: an asynchronous one may be found complete long after. A sibling that hangs does not keep the others
waiting for ever.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincope.live.rank import RankTail
from traincope.live.window import RankStatus

SETTLING_NS = 1_000_000_000
PATIENCE_NS = 30_000_000_000
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one rank is."""

    done: int
    """The last step that was reduced."""
    ends_ns: Mapping[int, int]
    """Finished step that was not reduced -> when it ended, on the host's monotonic clock."""
    open_since_ns: int | None
    """Since when a collective is open."""
    over: bool

    @property
    def finished(self) -> int:
        return max(self.ends_ns, default=self.done)


def progress(tail: RankTail, status: RankStatus) -> Progress:
    steps = tail.finished_steps()
    new = steps[steps["step"] > tail.done]
    return Progress(
        done=tail.done,
        ends_ns=dict(zip(new["step"].tolist(), new["end_ns"].tolist(), strict=True)),
        open_since_ns=tail.open_since_ns(),
        over=status.over,
    )


def last_ready(ranks: Sequence[Progress], *, expected: int, now_ns: int) -> int:
    """The last step that can be reduced, NONE where there is none. `expected`: how many ranks the node has."""
    finished = max((rank.finished for rank in ranks), default=NONE)
    running = [rank for rank in ranks if not rank.over]
    if not running or now_ns - _oldest_ns(ranks, default_ns=now_ns) > PATIENCE_NS:
        return finished
    if len(ranks) < expected:
        return NONE
    common = min(rank.finished for rank in running)
    return common if _settled(running, common, now_ns=now_ns) else common - 1


def _oldest_ns(ranks: Sequence[Progress], *, default_ns: int) -> int:
    """When the first of the steps ended that were not reduced."""
    return min((int(np.min(list(rank.ends_ns.values()))) for rank in ranks if rank.ends_ns), default=default_ns)


def _settled(running: Sequence[Progress], step: int, *, now_ns: int) -> bool:
    ends_ns = [rank.ends_ns[step] for rank in running if step in rank.ends_ns]
    if not ends_ns or all(rank.finished > step for rank in running):
        return True
    ended_ns = max(ends_ns)
    is_open = any(rank.open_since_ns is not None and rank.open_since_ns < ended_ns for rank in running)
    return now_ns - ended_ns >= SETTLING_NS and not is_open
