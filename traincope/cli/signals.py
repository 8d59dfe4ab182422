"""SIGTERM and SIGHUP as interrupts, for commands that write aside what must not remain."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDS = (signal.SIGTERM, signal.SIGHUP)
"""Sent by a scheduler, and by a terminal that closes."""


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt at one of `ENDS` within the block, so that files written aside are removed. A signal that
    is ignored, as by nohup, stays ignored.
    """
    before = {number: signal.getsignal(number) for number in ENDS}
    handled = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
