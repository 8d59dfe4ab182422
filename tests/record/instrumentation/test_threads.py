"""Other threads: which may be inside a collective. Real threads, at real places."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from torch import nn

from traincope.record.instrumentation.threads import KNOWN_AFTER, OtherThreads

DEADLINE_SECONDS = 60.0


@contextmanager
def thread(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    """`run` on another thread until `stop` ends it."""
    other = threading.Thread(target=run)
    other.start()
    try:
        yield
    finally:
        stop()
        other.join()


def settle(others: OtherThreads, *, may_be: bool) -> bool:
    """Look until the answer is as expected. The thread may be on its way to its place."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if others.may_be_in_a_collective() is may_be:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("what", ["event", "queue"])
def test_a_waiting_thread_is_in_no_collective(what: str) -> None:
    event, items = threading.Event(), queue.Queue[None]()
    run, stop = (event.wait, event.set) if what == "event" else (items.get, lambda: items.put(None))
    with thread(run, stop):
        assert settle(OtherThreads(), may_be=False)


def sleep_until(event: threading.Event) -> None:
    """Sleep by short naps, which no look can take for a wait."""
    while not event.is_set():
        time.sleep(0.001)


class Naps(nn.Module):
    """A module that is called by torch for as long as the test wants."""

    def forward(self, begun: threading.Event, ended: threading.Event) -> None:
        begun.set()
        sleep_until(ended)


def test_a_thread_seen_inside_torch_counts_from_then_on() -> None:
    """It counts outside of torch, too, because it may return at once. A wait is safe, and so is its end."""
    begun, leave, left, over, finish = (threading.Event() for _ in range(5))

    def work() -> None:
        Naps()(begun, leave)
        left.set()
        sleep_until(over)
        finish.wait()

    others = OtherThreads()
    with thread(work, finish.set):
        assert begun.wait(DEADLINE_SECONDS)
        assert others.may_be_in_a_collective()
        leave.set()
        assert left.wait(DEADLINE_SECONDS)
        assert all(others.may_be_in_a_collective() for _ in range(2 * KNOWN_AFTER))
        over.set()
        assert settle(others, may_be=False)
    assert settle(others, may_be=False)


def test_a_thread_that_was_never_seen_in_torch_is_trusted_after_a_few_looks() -> None:
    over, started = threading.Event(), threading.Event()

    def sample() -> None:
        started.set()
        sleep_until(over)

    others = OtherThreads()
    with thread(sample, over.set):
        assert started.wait(DEADLINE_SECONDS)
        looks = [others.may_be_in_a_collective() for _ in range(2 * KNOWN_AFTER)]
    assert looks[0]
    assert not looks[-1]
