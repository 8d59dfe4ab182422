"""Workloads played without torch: with a simulated clock for the truth, with the real clock for the machine's noise.

A rank is a thread. The simulated clock is a number that its own work advances; with the real clock it sleeps.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from evaluation.truth.trainings.workloads import Begin, Finish, Move, Work, Workload
from traincope.analysis.attribution.terms import EVALUATION, exposed_transfer, exposed_wait

Spent = Mapping[str, int]
"""Term, or `hidden(axis)` -> ns of one step of one rank."""
PATIENCE_SECONDS = 60.0


def hidden(axis: str) -> str:
    """Name of an axis' time on the wire while this rank does not stall for it."""
    return f"hidden[{axis}]"


def wall_ns(spent: Spent) -> int:
    """Wall time of a step, without evaluation; hidden communication takes no wall time."""
    return sum(ns for term, ns in spent.items() if term != EVALUATION and not term.startswith("hidden"))


class Clock(Protocol):
    @property
    def now_ns(self) -> int: ...

    def sleep_until(self, ns: int) -> None: ...


class SimulatedClock:
    """Time advances only by `sleep_until`."""

    now_ns = 0

    def sleep_until(self, ns: int) -> None:
        self.now_ns = max(self.now_ns, ns)


class RealClock:
    """This machine's clock."""

    @property
    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until(self, ns: int) -> None:
        time.sleep(max(ns - self.now_ns, 0) / 1e9)


@dataclass(slots=True)
class Exchange:
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
        """The transfer begins when the last rank has joined."""
        assert self.all_began.wait(PATIENCE_SECONDS), "a rank never began the collective"
        return max(self.begun_ns.values()) + self.link_ns


class TimedMove(NamedTuple):
    """A move of a step with its begin and end."""

    step: int
    move: Move
    began_ns: int
    ended_ns: int


class _Exchanges:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], Exchange] = {}

    def begin(self, step: int, move: Begin, *, rank: int, at_ns: int) -> None:
        with self._lock:
            exchange = self._known.setdefault((step, *move), Exchange(move.link_ns, move.ranks))
            exchange.begin(rank, at_ns)

    def begun(self, step: int, move: Finish, *, rank: int) -> Exchange:
        """The collective of that name that this rank has begun."""
        with self._lock:
            (exchange,) = (
                exchange
                for (when, axis, name, *_), exchange in self._known.items()
                if (when, axis, name) == (step, move.axis, move.name) and rank in exchange.ranks
            )
        return exchange


@dataclass(slots=True)
class _Player:
    rank: int
    clock: Clock
    exchanges: _Exchanges
    spent: dict[str, int] = field(default_factory=dict)
    timed_moves: list[TimedMove] = field(default_factory=list)

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
            self.exchanges.begin(step, move, rank=self.rank, at_ns=began_ns)
            self.spent[hidden(move.axis)] += move.link_ns
        else:
            exchange = self.exchanges.begun(step, move, rank=self.rank)
            self.clock.sleep_until(exchange.end_ns)
            self._add_stall(move.axis, self.clock.now_ns - began_ns, link_ns=exchange.link_ns)
        self.timed_moves.append(TimedMove(step, move, began_ns, self.clock.now_ns))

    def _add_stall(self, axis: str, ns: int, *, link_ns: int) -> None:
        """Split a stall: its last part is transfer, which was therefore not hidden; the rest is wait."""
        wire_ns = min(ns, link_ns)
        self.spent[exposed_transfer(axis)] += wire_ns
        self.spent[exposed_wait(axis)] += ns - wire_ns
        self.spent[hidden(axis)] -= wire_ns


def play(workload: Workload, clock: type[Clock], *, steps: int) -> list[list[Spent]]:
    """Terms by rank, then by step."""
    return [spent for spent, _ in _played(workload, clock, steps=steps)]


def moves(workload: Workload, *, steps: int) -> list[list[TimedMove]]:
    """Moves of each rank with the simulated clock, in order."""
    return [timed_moves for _, timed_moves in _played(workload, SimulatedClock, steps=steps)]


def _played(workload: Workload, clock: type[Clock], *, steps: int) -> list[tuple[list[Spent], list[TimedMove]]]:
    exchanges = _Exchanges()

    def rank_steps(rank: int) -> tuple[list[Spent], list[TimedMove]]:
        player, script = _Player(rank, clock(), exchanges), workload.script(rank)
        return [player.step(number, script) for number in range(steps)], player.timed_moves

    with ThreadPoolExecutor(workload.ranks) as threads:
        return list(threads.map(rank_steps, range(workload.ranks)))


def truth(workload: Workload) -> list[Spent]:
    """Terms of each rank in a step that equals the previous one."""
    played = play(workload, SimulatedClock, steps=4)
    assert all(steps[-1] == steps[-2] for steps in played), "the steps never become equal"
    return [steps[-1] for steps in played]
