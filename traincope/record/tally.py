"""Our count of collectives beside that of torch's flight recorder: how many passed us by."""

from collections.abc import Callable
from itertools import count

from traincope.record.operations import Operation
from traincope.record.torch_private import flight_recorded

COUNTED_OTHERWISE = frozenset({"reduce_scatter_", "monitored_barrier_"})
"""Of the one gloo makes two entries, of the other none: where they were called the counts do not compare."""


class Tally:
    """From `begin` on. Ours is never ahead by what comes while it begins or ends: only what is missed is told."""

    def __init__(self) -> None:
        self._collectives, self._messages, self._otherwise = count(), count(), count()
        self._before = 0

    def counter(self, operation: Operation) -> Callable[[], int]:
        """To be called at each call of that operator."""
        if operation.op in COUNTED_OTHERWISE:
            return self._otherwise.__next__
        return (self._collectives if operation.tag is None else self._messages).__next__

    def begin(self) -> None:
        """Takes some 30 ms where torch has recorded many already."""
        self._before = (flight_recorded() or (0, False))[0]

    def end(self) -> tuple[int, int] | None:
        """How many were seen, and how many more torch has counted; None where that is not known. Only once."""
        theirs = flight_recorded()
        seen, messages = next(self._collectives), next(self._messages)
        if theirs is None or next(self._otherwise):
            return None
        counted, with_messages = theirs
        seen += messages if with_messages else 0
        return seen, max(counted - self._before - seen, 0)


def counts_alike() -> bool | None:
    """Whether the flight recorder counts what the dispatcher's operators do: gloo's; None where there is no group.

    With TORCH_DISTRIBUTED_DEBUG=DETAIL gloo checks every collective by some of its own.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    detailed = dist.get_debug_level() is dist.DebugLevel.DETAIL  # type: ignore[attr-defined]  # not in __all__
    return dist.get_backend() == "gloo" and not detailed
