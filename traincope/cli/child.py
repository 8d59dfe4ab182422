"""Run a command as if it had been typed instead of ours: same terminal, same signals, same exit code."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from traincope.errors import UsageError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)
"""A terminal sends these for keys, to every process of the group in its foreground: to the child as well."""

KILLED = 128
"""What a shell adds to a signal's number to make an exit code of it."""


def run_child(command: Sequence[str], *, environment: Mapping[str, str]) -> int:
    """Its exit code, or 128 + the signal that ended it.

    Raises UsageError where it cannot be started.
    """
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror}") from error
    with _forwarding(child):
        code = child.wait()
    return KILLED - code if code < 0 else code


@contextmanager
def _forwarding(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Send the child what we are sent. What we were started to ignore (nohup), it ignores too."""

    def forward(number: int, _frame: FrameType | None) -> None:
        if number not in FROM_KEYS or not _in_foreground():
            child.send_signal(number)

    heeded = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether our process group has the terminal's keys."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
