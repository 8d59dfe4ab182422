"""Replay of recorded moves with changed times, and the resulting step times.

The steps are played twice in a row and the second round counts: by then the change has settled in how far ranks are
apart at the begin of a step.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from traincope.analysis.attribution.terms import exposed_transfer, exposed_wait
from traincope.analysis.replaying.moves import Begin, CollectiveKey, Finish, Move, Moves, StepBegins, StepEnds, Work

NUM_ROUNDS = 2
TRANSFER = exposed_transfer("").removesuffix("]")


@dataclass(frozen=True, slots=True)
class Factors:
    """Factors on recorded times."""

    by_term: Mapping[tuple[int | None, str], float] = field(default_factory=dict)
    """(Rank, ledger term) -> factor on its time; rank None: all ranks."""
    by_step: Mapping[tuple[int, str], Mapping[int, float]] = field(default_factory=dict)
    """(Rank, term of its work) -> step number -> factor, in addition; 1 in other steps."""
    unmeasured: float = 1.0
    """Factor on transfers whose time no record gives."""
    keeps_ambiguous: bool = False
    """Stalls that may be transfer or wait keep their time."""
    balanced: frozenset[str] = frozenset()
    """Axes whose collectives all ranks join at the mean of their times, instead of a factor on their waits."""

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms that change."""
        return tuple(dict.fromkeys(term for _, term in (*self.by_term, *self.by_step)))

    def term(self, rank: int, term: str) -> float:
        """Factor of a term in all steps."""
        return self.by_term.get((None, term), 1.0) * self.by_term.get((rank, term), 1.0)

    def work(self, rank: int, term: str, step: int | None) -> float:
        if self.keeps_ambiguous and term.startswith(TRANSFER):
            return 1.0
        in_step = 1.0 if step is None else self.by_step.get((rank, term), {}).get(step, 1.0)
        return self.term(rank, term) * in_step

    def transfer(self, axis: str) -> float:
        return self.by_term.get((None, exposed_transfer(axis)), 1.0)

    def wait(self, axis: str) -> float | None:
        if axis in self.balanced:
            return None
        return self.by_term.get((None, exposed_wait(axis)), 1.0)


@dataclass(slots=True)
class _Collective:
    """A collective in the replay. `lateness`: factor on how late its ranks come; None: all come at the mean time."""

    ranks: int
    lateness: float | None
    first_ns: float = float("inf")
    last_ns: float = float("-inf")
    sum_ns: float = 0.0
    joined: int = 0
    waiting: list["_RankReplay"] = field(default_factory=list)

    def join(self, at_ns: float) -> bool:
        """Add a rank; True if it was the last."""
        self.first_ns, self.last_ns = min(self.first_ns, at_ns), max(self.last_ns, at_ns)
        self.sum_ns += at_ns
        self.joined += 1
        return self.is_full

    @property
    def is_full(self) -> bool:
        return self.joined == self.ranks

    def earlier(self, at_ns: float) -> float:
        """Changed time of a rank that came at `at_ns`. All ranks must have joined."""
        if self.lateness is None:
            return self.sum_ns / self.ranks
        return self.first_ns + self.lateness * (at_ns - self.first_ns)


_RankReplay = Iterator[_Collective]
"""A rank's replay, paused at a collective that must be full before the rank can continue."""


def replay(moves: Mapping[int, Moves], factors: Factors) -> tuple[float, ...] | None:
    """Time of each step of the job, ns: from when all ranks have begun it to when all have ended it.

    None if ranks wait for each other forever.
    """
    rounds = _Replay(moves, factors)
    rounds.play_all()
    return rounds.steps_ns()


class _Replay:
    def __init__(self, moves: Mapping[int, Moves], factors: Factors) -> None:
        self._moves, self._factors = moves, factors
        self._collectives: dict[tuple[int, int], _Collective] = {}
        self._began_ns: dict[tuple[int, int], float] = {}
        self._ended_ns: dict[tuple[int, int], float] = {}
        """(Round, step number) -> time of the last rank."""
        self._going: deque[_RankReplay] = deque()
        self._left = len(moves)

    def play_all(self) -> None:
        start_ns = min(rank.start_ns for rank in self._moves.values())
        self._going += [
            self._rank_replay(rank, rank_moves.moves, rank_moves.start_ns - start_ns)
            for rank, rank_moves in self._moves.items()
        ]
        while self._going:
            rank_replay = self._going.popleft()
            collective = next((each for each in rank_replay if not each.is_full), None)
            if collective is None:
                self._left -= 1
            else:
                collective.waiting.append(rank_replay)

    def steps_ns(self) -> tuple[float, ...] | None:
        if self._left:
            return None
        ended = {step: ns for step, ns in self._ended_ns.items() if step[0] == NUM_ROUNDS - 1}
        return tuple(ended[step] - self._began_ns[step] for step in sorted(ended))

    def _rank_replay(self, rank: int, moves: tuple[Move, ...], start_ns: int) -> _RankReplay:
        now, step = float(start_ns), None
        for round_ in range(NUM_ROUNDS):
            for move in moves:
                if isinstance(move, Work):
                    now += move.ns * self._factors.work(rank, move.term, step)
                elif isinstance(move, Begin):
                    collective = self._collective(round_, move.collective)
                    self._join(collective, now)
                    if collective.lateness != 1.0:
                        yield collective
                        now = collective.earlier(now)
                elif isinstance(move, Finish):
                    collective, slower = (
                        self._collective(round_, move.collective),
                        self._factors.transfer(move.collective.axis),
                    )
                    yield collective
                    delay_ns = move.delay_ns * (1.0 if move.measured else self._factors.unmeasured)
                    released_ns = collective.earlier(collective.last_ns) + delay_ns * slower
                    now = max(now, released_ns) + move.late_ns * slower
                else:
                    step = move.number
                    self._mark(round_, move, now)

    def _collective(self, round_: int, key: CollectiveKey) -> _Collective:
        known = self._collectives.get((round_, key.instance))
        if known is None:
            known = _Collective(ranks=key.ranks, lateness=self._factors.wait(key.axis))
            self._collectives[round_, key.instance] = known
        return known

    def _join(self, collective: _Collective, now: float) -> None:
        if collective.join(now):
            self._going += collective.waiting
            collective.waiting = []

    def _mark(self, round_: int, move: StepBegins | StepEnds, now: float) -> None:
        marks = self._began_ns if isinstance(move, StepBegins) else self._ended_ns
        marks[round_, move.number] = max(marks.get((round_, move.number), now), now)
