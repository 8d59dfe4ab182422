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
from traincope.plan.search.answer import Answer
from traincope.plan.search.question import Question, answer, find
from traincope.plan.search.rates import MeasuredRates

MAX_KEPT, MAX_RUNNING = 64, 3
"""Answers that are kept, and searches at once."""
LEFT_SECONDS = 5.0
"""An open page asks for its answer several times per second. One that has not asked for so long has moved on."""
ENDED = "the process that searched was killed, perhaps because memory ran out; narrow the search"

Outcome = Answer | TraincopeError


class Search(NamedTuple):
    """A question, and the rates of the run that it names."""

    question: Question
    rates: MeasuredRates | None = None


class Pending(Protocol):
    """A search that runs."""

    def done(self) -> bool: ...

    def result(self) -> Outcome: ...

    def close(self) -> None: ...


class Searching:
    """The running child process; it starts on construction."""

    def __init__(self, asked: Search) -> None:
        context = multiprocessing.get_context("spawn")
        self._answer, child_end = context.Pipe(duplex=False)
        self._process = context.Process(target=_search, args=(asked, child_end), daemon=True)
        self._process.start()
        child_end.close()

    def done(self) -> bool:
        return self._answer.poll()

    def result(self) -> Outcome:
        try:
            outcome: Outcome = self._answer.recv()
        except EOFError:
            outcome = UsageError(ENDED)
        self.close()
        return outcome

    def close(self) -> None:
        """End the child process, with or without an answer."""
        self._process.terminate()
        self._process.join()
        self._answer.close()


def _search(asked: Search, answered: Connection) -> None:
    with suppress(BrokenPipeError, KeyboardInterrupt):  # The parent process is gone.
        answered.send(outcome_of(asked))


def outcome_of(asked: Search) -> Outcome:
    """The answer, or the error that says why there is none."""
    question, rates = asked
    try:
        return answer(question, find(question, rates=rates), rates=rates)
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
