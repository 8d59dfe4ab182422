"""Workloads played out without torch: on paper, which is the truth, and by a watch, which is what the machine adds.

A rank is a thread. On paper its clock is a number that its own work adds to; by the watch it really sleeps.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tests.truth.workloads import Begin, Finish, Move, Work, Workload
from traincope.analysis.terms import EVALUATION, exposed_transfer, exposed_wait

Spent = Mapping[str, int]
"""Term, or `hidden(axis)` -> ns of one step of one rank."""
PATIENCE_SECONDS = 60.0


def hidden(axis: str) -> str:
    """What an axis' bytes were on the wire while nobody on this rank stood still for them."""
    return f"hidden[{axis}]"


def wall_ns(spent: Spent) -> int:
    """Of a step; an evaluation is no part of it, and what is hidden takes no time."""
    return sum(ns for term, ns in spent.items() if term != EVALUATION and not term.startswith("hidden"))


class Clock(Protocol):
    @property
    def now_ns(self) -> int: ...

    def sleep_until(self, ns: int) -> None: ...


class Paper:
    """Time passes only where somebody says so."""

    now_ns = 0

    def sleep_until(self, ns: int) -> None:
        self.now_ns = max(self.now_ns, ns)


class Watch:
    """This machine's time."""

    @property
    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until(self, ns: int) -> None:
        time.sleep(max(ns - self.now_ns, 0) / 1e9)


@dataclass(slots=True)
class Meeting:
    """A collective of one step."""

    link_ns: int
    ranks: tuple[int, ...]
    begun_ns: dict[int, int] = field(default_factory=dict)
    all_began: threading.Event = field(default_factory=threading.Event)

    def begin(self, rank: int, at_ns: int) -> None:
        self.begun_ns[rank] = at_ns
        if len(self.begun_ns) == len(self.ranks):
            self.all_began.set()

    @property
    def end_ns(self) -> int:
        """Its bytes go when the last rank has joined."""
        assert self.all_began.wait(PATIENCE_SECONDS), "a rank never began it"
        return max(self.begun_ns.values()) + self.link_ns


class Moved(NamedTuple):
    """A move of a step, and when."""

    step: int
    move: Move
    began_ns: int
    ended_ns: int


class _Meetings:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], Meeting] = {}

    def begin(self, step: int, move: Begin, *, rank: int, at_ns: int) -> None:
        with self._lock:
            meeting = self._known.setdefault((step, *move), Meeting(move.link_ns, move.ranks))
            meeting.begin(rank, at_ns)

    def begun(self, step: int, move: Finish, *, rank: int) -> Meeting:
        """The one of that name that this rank has begun."""
        with self._lock:
            (meeting,) = (
                meeting
                for (when, axis, name, *_), meeting in self._known.items()
                if (when, axis, name) == (step, move.axis, move.name) and rank in meeting.ranks
            )
        return meeting


@dataclass(slots=True)
class _Player:
    rank: int
    clock: Clock
    meetings: _Meetings
    spent: dict[str, int] = field(default_factory=dict)
    moved: list[Moved] = field(default_factory=list)

    def step(self, number: int, script: tuple[Move, ...]) -> Spent:
        self.spent = defaultdict(int)
        for move in script:
            self._move(number, move)
        return dict(self.spent)

    def _move(self, step: int, move: Move) -> None:
        began_ns = self.clock.now_ns
        if isinstance(move, Work):
            self.clock.sleep_until(began_ns + move.ns)
            self.spent[move.term] += self.clock.now_ns - began_ns
        elif isinstance(move, Begin):
            self.meetings.begin(step, move, rank=self.rank, at_ns=began_ns)
            self.spent[hidden(move.axis)] += move.link_ns
        else:
            meeting = self.meetings.begun(step, move, rank=self.rank)
            self.clock.sleep_until(meeting.end_ns)
            self._stood(move.axis, self.clock.now_ns - began_ns, link_ns=meeting.link_ns)
        self.moved.append(Moved(step, move, began_ns, self.clock.now_ns))

    def _stood(self, axis: str, ns: int, *, link_ns: int) -> None:
        """The last of it for the wire, which so was not hidden; the rest for others."""
        wire_ns = min(ns, link_ns)
        self.spent[exposed_transfer(axis)] += wire_ns
        self.spent[exposed_wait(axis)] += ns - wire_ns
        self.spent[hidden(axis)] -= wire_ns


def play(workload: Workload, clock: type[Clock], *, steps: int) -> list[list[Spent]]:
    """By rank, and then by step."""
    return [spent for spent, _ in _played(workload, clock, steps=steps)]


def moves(workload: Workload, *, steps: int) -> list[list[Moved]]:
    """On paper: by rank, all it did, in order."""
    return [moved for _, moved in _played(workload, Paper, steps=steps)]


def _played(workload: Workload, clock: type[Clock], *, steps: int) -> list[tuple[list[Spent], list[Moved]]]:
    meetings = _Meetings()

    def rank_steps(rank: int) -> tuple[list[Spent], list[Moved]]:
        player, script = _Player(rank, clock(), meetings), workload.script(rank)
        return [player.step(number, script) for number in range(steps)], player.moved

    with ThreadPoolExecutor(workload.ranks) as threads:
        return list(threads.map(rank_steps, range(workload.ranks)))


def truth(workload: Workload) -> list[Spent]:
    """Of each rank, in a step that is like the one before."""
    played = play(workload, Paper, steps=4)
    assert all(steps[-1] == steps[-2] for steps in played), "its steps never become alike"
    return [steps[-1] for steps in played]
