"""Whether somebody else's kernel has hidden collectives from ours, and how many."""

from collections.abc import Iterable
from time import monotonic_ns

from traincope.record.dispatcher import Interposed
from traincope.record.guard import guard
from traincope.record.recorder import Recorder
from traincope.record.tally import Tally, counts_alike

LOOK_INTERVAL_NS = 1_000_000_000
FEW = 2
"""Operators looked at each time: in the middle of a training asking the dispatcher for all takes milliseconds."""


class Unseen:
    """Looks between steps and at the end; what came and went meanwhile is known by what torch counted beyond."""

    def __init__(self, recorder: Recorder, interposed: Interposed, tally: Tally, *, probe: str) -> None:
        self._recorder = recorder
        self._interposed = interposed
        self._tally = tally
        self._probe = probe
        self._hidden: dict[str, None] = {}
        """Operators in front of which somebody else's kernel was found."""
        self._counts_alike = False
        self._looked_ns = 0
        self._left: list[str] = []
        """Operators to be looked at before the first comes again."""
        self._over = False

    def begin(self) -> None:
        self._tally.begin()
        self._recorder.between_steps(self._between_steps)

    def finish(self) -> None:
        """Once, while our kernels are still there."""
        if not self._over:
            self._over = True
            guard(self._tell)()

    def _between_steps(self) -> None:
        now = monotonic_ns()
        if not self._over and now - self._looked_ns >= LOOK_INTERVAL_NS:
            looked_before, self._looked_ns = self._looked_ns > 0, now
            if self._look(self._next_few() if looked_before else self._interposed.operators):
                self._recorder.note()

    def _next_few(self) -> list[str]:
        self._left = self._left or self._interposed.operators
        few, self._left = self._left[:FEW], self._left[FEW:]
        return few

    def _look(self, operators: Iterable[str]) -> bool:
        """Whether more are hidden than were before."""
        alike = counts_alike()
        self._counts_alike = self._counts_alike if alike is None else alike
        known = len(self._hidden)
        self._hidden |= dict.fromkeys(self._interposed.hidden(operators))
        if len(self._hidden) > known:
            self._recorder.probes[self._probe] = f"on, but somebody else's kernel hid {', '.join(self._hidden)}"
        return len(self._hidden) > known

    def _tell(self) -> None:
        self._look(self._interposed.operators)
        states, counts = self._recorder.probes, self._tally.end() if self._counts_alike else None
        if counts is not None and counts[1]:
            seen, more = counts
            joint = "; " if self._hidden else ", but "
            states[self._probe] += f"{joint}torch's flight recorder counted {more} more than the {seen} that it saw"
        elif counts is None and self._hidden:
            states[self._probe] += "; how many it missed is not known"
