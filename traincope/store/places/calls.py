"""Calls that may never return, as those of a store's library: each has a daemon thread, which keeps no process alive.

A few run at the same time. One that is given up no longer counts among them, so that later calls still begin. Its
thread stays until it returns, and the number of all threads is bounded too.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Expired
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Call(Generic[Value]):
    """A call that has begun."""

    def __init__(self, do: Callable[[], Value], *, places: threading.Semaphore, threads: threading.Semaphore) -> None:
        self._do, self._places, self._threads = do, places, threads
        self._lock, self._has_place = threading.Lock(), True
        self._future: Future[Value] = Future()
        threading.Thread(target=self._run, name="call to a store", daemon=True).start()

    def exception(self, seconds: float) -> BaseException | None:
        """Wait for the end. Returns what the call raised. Raises `Expired` after `seconds`, and gives the call up."""
        try:
            return self._future.exception(seconds)
        except Expired:
            self.give_up()
            raise

    def result(self) -> Value:
        """Return the value of a call that has ended, or raise what it raised."""
        return self._future.result()

    def give_up(self) -> None:
        """Let another call begin, whether or not this one returns."""
        with self._lock:
            has_place, self._has_place = self._has_place, False
        if has_place:
            self._places.release()

    def _run(self) -> None:
        try:
            value = self._do()
        except BaseException as error:  # noqa: BLE001 - who waits for the call gets it
            self._future.set_exception(error)
        else:
            self._future.set_result(value)
        finally:
            self._threads.release()
            self.give_up()


class Calls:
    """Calls of this process, at most `at_once` at the same time, in at most `most` threads."""

    def __init__(self, *, at_once: int, most: int) -> None:
        self._places, self._threads = threading.Semaphore(at_once), threading.Semaphore(most)

    def begin(self, do: Callable[[], Value], *, seconds: float) -> Call[Value]:
        """Begin a call. Raises `Expired` if others do not end within `seconds`."""
        if not self._places.acquire(timeout=seconds):
            raise Expired
        if not self._threads.acquire(blocking=False):
            self._places.release()
            raise Expired
        return Call(do, places=self._places, threads=self._threads)
