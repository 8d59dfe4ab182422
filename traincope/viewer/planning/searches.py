"""Searches of layouts, each in a child process, so that the server answers while one runs."""

import multiprocessing
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

from traincope.errors import TraincopeError, UsageError
from traincope.executors import hear_interrupts, start_quietly
from traincope.plan.search.answer import Answer
from traincope.plan.search.question import Question, answer, find
from traincope.plan.search.rates import MeasuredRates
from traincope.plan.search.search import Report

MAX_KEPT, MAX_RUNNING = 64, 3
"""Answers that are kept, and searches at once."""
LEFT_SECONDS = 5.0
"""An open page asks for its answer several times per second. One that has not asked for so long has moved on."""
REPORT_SECONDS = 0.25
"""Least time between two messages of a search."""
ENDED = "the process that searched was killed, perhaps because memory ran out; narrow the search"

Outcome = Answer | TraincopeError


class Search(NamedTuple):
    """A question, and the rates of the run that it names."""

    question: Question
    rates: MeasuredRates | None = None


class Pending(Protocol):
    """A search that runs."""

    @property
    def stage(self) -> str:
        """What it did at the last call of `done`; empty if unknown."""

    def done(self) -> bool: ...

    def result(self) -> Outcome: ...

    def close(self) -> None: ...


class Searching:
    """The running child process; it starts on construction."""

    def __init__(self, asked: Search) -> None:
        context = multiprocessing.get_context("spawn")
        self._answer, child_end = context.Pipe(duplex=False)
        self._process = context.Process(target=_search, args=(asked, child_end), daemon=True)
        start_quietly(self._process)
        child_end.close()
        self._stage = ""
        self._outcome: Outcome | None = None

    @property
    def stage(self) -> str:
        return self._stage

    def done(self) -> bool:
        """Take the messages that have arrived; True once the outcome is among them, or the process has ended."""
        while self._outcome is None and self._answer.poll():
            try:
                message: str | Outcome = self._answer.recv()
            except EOFError:
                message = UsageError(ENDED)
            if isinstance(message, str):
                self._stage = message
            else:
                self._outcome = message
        return self._outcome is not None

    def result(self) -> Outcome:
        """The outcome, once it is done."""
        outcome = self._outcome
        if outcome is None:
            raise RuntimeError("the search runs")
        self.close()
        return outcome

    def close(self) -> None:
        """End the child process, with or without an answer."""
        self._process.terminate()
        self._process.join()
        self._answer.close()


def _search(asked: Search, answered: Connection) -> None:
    with suppress(BrokenPipeError, KeyboardInterrupt):  # The parent process is gone.
        hear_interrupts()
        answered.send(outcome_of(asked, report=_Reporting(answered.send)))


class _Reporting:
    """Passes on what a search does, seldom."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send, self._next = send, 0.0

    def __call__(self, stage: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REPORT_SECONDS
            self._send(stage)


def outcome_of(asked: Search, *, report: Report = lambda _: None) -> Outcome:
    """The answer, or the error that says why there is none."""
    question, rates = asked
    try:
        return answer(question, find(question, rates=rates, report=report), rates=rates)
    except TraincopeError as error:
        return error


class Searches:
    """Answers to the latest questions. Child processes are daemons: they end with the server."""

    def __init__(
        self, begin: Callable[[Search], Pending] = Searching, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._begin, self._now = begin, now
        self._known: OrderedDict[Search, Outcome] = OrderedDict()
        self._running: OrderedDict[Search, Pending] = OrderedDict()
        self._asked_at: dict[Search, float] = {}
        """Running search -> time of the last call for it."""
        self._lock = threading.Lock()

    def __getitem__(self, asked: Search) -> Outcome | None:
        """The outcome; None while it is being searched.

        The first call begins the search. If MAX_RUNNING others run, it ends one that no page asks for any more. Without
        such a one, a later call begins the search.
        """
        with self._lock:
            self._collect()
            if asked in self._known:
                self._known.move_to_end(asked)
                return self._known[asked]
            if asked not in self._running:
                if len(self._running) >= MAX_RUNNING and not self._end_one():
                    return None
                self._running[asked] = self._begin(asked)
            self._running.move_to_end(asked)
            self._asked_at[asked] = self._now()
            return None

    def begin(self, asked: Search) -> None:
        """Begin a search that a page will ask for."""
        _ = self[asked]

    def stage(self, asked: Search) -> str:
        """What a search does now; empty if it is unknown."""
        with self._lock:
            pending = self._running.get(asked)
            return "" if pending is None else pending.stage

    def _end_one(self) -> bool:
        """End the search that was not asked for longest; False if a page asks for each of them."""
        oldest = next(iter(self._running))
        if self._now() - self._asked_at[oldest] < LEFT_SECONDS:
            return False
        self._forget(oldest).close()
        return True

    def _forget(self, asked: Search) -> Pending:
        del self._asked_at[asked]
        return self._running.pop(asked)

    def _collect(self) -> None:
        """Take the results of finished searches."""
        for asked in [each for each, pending in self._running.items() if pending.done()]:
            self._known[asked] = self._forget(asked).result()
        while len(self._known) > MAX_KEPT:
            self._known.popitem(last=False)
