"""Recorded moves played again, with other times: when every step of the job would end.

The steps are played twice, one time after the other, and the second time counts: what a change does to where ranks
are when a step begins has settled then.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from traincope.analysis.terms import exposed_transfer, exposed_wait
from traincope.analysis.what_if_moves import Begin, Finish, Met, Move, Moves, StepBegins, StepEnds, Work

TIMES = 2


@dataclass(frozen=True, slots=True)
class Factors:
    """(Rank, ledger term) -> by how much longer it takes; rank None: on all of them."""

    of: Mapping[tuple[int | None, str], float]
    unseen: float = 1.0
    """The same of wires of which nobody saw how long they took."""

    def work(self, rank: int, term: str) -> float:
        return self.of.get((None, term), 1.0) * self.of.get((rank, term), 1.0)

    def transfer(self, axis: str) -> float:
        return self.of.get((None, exposed_transfer(axis)), 1.0)

    def wait(self, axis: str) -> float:
        return self.of.get((None, exposed_wait(axis)), 1.0)


@dataclass(slots=True)
class _Meeting:
    """A collective. `lateness`: so much of it is left."""

    ranks: int
    lateness: float
    first_ns: float = float("inf")
    last_ns: float = float("-inf")
    joined: int = 0
    waiting: list["_Course"] = field(default_factory=list)

    def join(self, at_ns: float) -> bool:
        """Whether that was the last."""
        self.first_ns, self.last_ns = min(self.first_ns, at_ns), max(self.last_ns, at_ns)
        self.joined += 1
        return self.is_full

    @property
    def is_full(self) -> bool:
        return self.joined == self.ranks

    def earlier(self, at_ns: float) -> float:
        """When who came at that instant would have come."""
        return self.first_ns + self.lateness * (at_ns - self.first_ns)


_Course = Iterator[_Meeting]
"""A rank on its way, up to a meeting that has to be full before it can go on."""


def replay(moves: Mapping[int, Moves], factors: Factors) -> tuple[int, ...] | None:
    """How long each step of the job takes, ns: from when all ranks have begun it to when all have ended it.

    None where ranks wait for each other for ever.
    """
    play = _Play(moves, factors)
    play.to_the_end()
    return play.steps_ns()


class _Play:
    def __init__(self, moves: Mapping[int, Moves], factors: Factors) -> None:
        self._moves, self._factors = moves, factors
        self._meetings: dict[tuple[int, int], _Meeting] = {}
        self._begun: dict[tuple[int, int], float] = {}
        self._ended: dict[tuple[int, int], float] = {}
        """(Which time, step number) -> when the last rank did."""
        self._going: deque[_Course] = deque()
        self._left = len(moves)

    def to_the_end(self) -> None:
        start_ns = min(rank.start_ns for rank in self._moves.values())
        self._going += [self._course(rank, of.moves, of.start_ns - start_ns) for rank, of in self._moves.items()]
        while self._going:
            course = self._going.popleft()
            meeting = next((one for one in course if not one.is_full), None)
            if meeting is None:
                self._left -= 1
            else:
                meeting.waiting.append(course)

    def steps_ns(self) -> tuple[int, ...] | None:
        if self._left:
            return None
        ended = {step: ns for step, ns in self._ended.items() if step[0] == TIMES - 1}
        return tuple(round(ended[step] - self._begun[step]) for step in sorted(ended))

    def _course(self, rank: int, moves: tuple[Move, ...], start_ns: int) -> _Course:
        now = float(start_ns)
        for time in range(TIMES):
            for move in moves:
                if isinstance(move, Work):
                    now += move.ns * self._factors.work(rank, move.term)
                elif isinstance(move, Begin):
                    meeting = self._meeting(time, move.of)
                    self._join(meeting, now)
                    if meeting.lateness != 1.0:
                        yield meeting
                        now = meeting.earlier(now)
                elif isinstance(move, Finish):
                    meeting, slower = self._meeting(time, move.of), self._factors.transfer(move.of.axis)
                    yield meeting
                    delay_ns = move.delay_ns * (1.0 if move.seen else self._factors.unseen)
                    there = meeting.earlier(meeting.last_ns) + delay_ns * slower
                    now = max(now, there) + move.late_ns * slower
                else:
                    self._mark(time, move, now)

    def _meeting(self, time: int, met: Met) -> _Meeting:
        known = self._meetings.get((time, met.instance))
        if known is None:
            known = _Meeting(ranks=met.ranks, lateness=self._factors.wait(met.axis))
            self._meetings[time, met.instance] = known
        return known

    def _join(self, meeting: _Meeting, now: float) -> None:
        if meeting.join(now):
            self._going += meeting.waiting
            meeting.waiting = []

    def _mark(self, time: int, move: StepBegins | StepEnds, now: float) -> None:
        marks = self._begun if isinstance(move, StepBegins) else self._ended
        marks[time, move.number] = max(marks.get((time, move.number), now), now)
