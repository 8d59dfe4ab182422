"""Missed collectives: kernels of other libraries that hide them from ours, and the number that torch counted beyond
ours.
"""

from collections.abc import Callable, Iterable
from itertools import count
from time import monotonic_ns
from typing import Protocol

from traincope.record.communication.operations import Operation
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.torch_private import flight_recorded
from traincope.record.session.recorder import Recorder

LOOK_INTERVAL_NS = 1_000_000_000
BATCH_SIZE = 2
"""Operators checked each time. During a training, checking all of them with the dispatcher takes milliseconds."""
INCOMPARABLE_OPERATORS = frozenset({"reduce_scatter_", "monitored_barrier_"})
"""Operators that gloo counts differently: two entries for one of them, none for the other.

The counts do not compare if one of these was called.
"""


class CallCounts:
    """Our count of collectives since `begin`, next to the count of torch's flight recorder.

    Ours never runs ahead by calls during `begin` or `end`, so only real misses are reported.
    """

    def __init__(self) -> None:
        self._collectives, self._messages, self._incomparable = count(), count(), count()
        self._others = (0, 0, 0)
        self._baseline = 0

    def counter(self, operation: Operation) -> Callable[[], int]:
        """Return a function to call at each call of that operator."""
        if operation.op in INCOMPARABLE_OPERATORS:
            return self._incomparable.__next__
        return (self._collectives if operation.tag is None else self._messages).__next__

    def add(self, *, collectives: int, messages: int, incomparable: int) -> None:
        """Add calls that native kernels have counted."""
        others = zip(self._others, (collectives, messages, incomparable), strict=True)
        self._others = tuple(before + more for before, more in others)  # type: ignore[assignment]

    def begin(self) -> None:
        """Read the flight recorder's baseline. Takes some 30 ms if torch has recorded many collectives already."""
        self._baseline = (flight_recorded() or (0, False))[0]

    def end(self) -> tuple[int, int] | None:
        """Return our count and the number torch counted beyond it. None if that is unknown. Call only once."""
        flight_counts = flight_recorded()
        own = next(self._collectives), next(self._messages), next(self._incomparable)
        num_recorded, messages, incomparable = (one + other for one, other in zip(own, self._others, strict=True))
        if flight_counts is None or incomparable:
            return None
        counted, with_messages = flight_counts
        num_recorded += messages if with_messages else 0
        return num_recorded, max(counted - self._baseline - num_recorded, 0)


class Kernels(Protocol):
    """Kernels before operators of c10d, in Python or native."""

    was_withdrawn: bool
    left_out: tuple[str, ...]

    @property
    def operators(self) -> list[str]: ...

    def hidden(self, operators: Iterable[str]) -> tuple[str, ...]: ...


class MissedCollectives:
    """Checks for hidden operators between steps and at the end.

    Kernels that came and went in between show in the counts.
    """

    def __init__(self, recorder: Recorder, interposed: Kernels, call_counts: CallCounts, *, probe: str) -> None:
        self._recorder = recorder
        self._interposed = interposed
        self._call_counts = call_counts
        self._probe = probe
        self._hidden: dict[str, None] = {}
        """Operators that another library's kernel precedes."""
        self._flight_recorder_matches = False
        self._checked_ns = 0
        self._operators_left: list[str] = []
        """Operators to check before the first comes round again."""
        self._finished = False

    def begin(self) -> None:
        self._call_counts.begin()
        self._recorder.now_and_then(self._between_steps)

    def finish(self) -> None:
        """Report once, while our kernels are still registered."""
        if not self._finished:
            self._finished = True
            guard(self._report)()

    def _between_steps(self) -> None:
        now = monotonic_ns()
        if not self._finished and now - self._checked_ns >= LOOK_INTERVAL_NS:
            checked_before, self._checked_ns = self._checked_ns > 0, now
            if self._check(self._next_batch() if checked_before else self._interposed.operators):
                self._recorder.write_metadata()

    def _next_batch(self) -> list[str]:
        self._operators_left = self._operators_left or self._interposed.operators
        batch, self._operators_left = self._operators_left[:BATCH_SIZE], self._operators_left[BATCH_SIZE:]
        return batch

    def _check(self, operators: Iterable[str]) -> bool:
        """Check operators. Returns whether more are hidden than before."""
        alike = flight_recorder_matches()
        self._flight_recorder_matches = self._flight_recorder_matches if alike is None else alike
        known = len(self._hidden)
        self._hidden |= dict.fromkeys((*self._interposed.left_out, *self._interposed.hidden(operators)))
        if len(self._hidden) > known:
            self._recorder.probes[self._probe] = f"on, but another kernel hid {', '.join(self._hidden)}"
        return len(self._hidden) > known

    def _report(self) -> None:
        self._check(self._interposed.operators)
        comparable = self._flight_recorder_matches and not self._interposed.was_withdrawn
        states, counts = self._recorder.probes, self._call_counts.end() if comparable else None
        if counts is not None and counts[1]:
            num_recorded, num_missed = counts
            joint = "; " if self._hidden else ", but "
            states[self._probe] += (
                f"{joint}torch's flight recorder counted {num_missed} more than the {num_recorded} recorded"
            )
        elif counts is None and self._hidden:
            states[self._probe] += "; the number of missed ones is unknown"


def flight_recorder_matches() -> bool | None:
    """Return whether the flight recorder counts the same calls as the dispatcher's operators.

    None without a process group.

    It does so for gloo. With TORCH_DISTRIBUTED_DEBUG=DETAIL gloo checks every collective by additional ones.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    detailed = dist.get_debug_level() is dist.DebugLevel.DETAIL  # type: ignore[attr-defined]  # not in __all__
    return dist.get_backend() == "gloo" and not detailed
