"""Run a command as a child with the same terminal, signals and exit code as if it had been typed."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from traincope.cli.launch.hang_exit import HangExit
from traincope.errors import UsageError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)
"""A terminal sends these on key presses to all processes of its foreground group, so also to the child."""

KILLED = 128
"""A shell's exit code after a signal is 128 + the signal's number."""


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask a process to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a command."""

    pid: int
    exit_code: int
    """Negative: the signal that ended it."""
    stop_signal: signal.Signals | None
    """The first signal that asked for an end: one that this process received, or its own to a job that hung."""

    @property
    def shell_code(self) -> int:
        """The exit code, or 128 + the signal that ended the command."""
        return KILLED - self.exit_code if self.exit_code < 0 else self.exit_code


def run_child(command: Sequence[str], *, environment: Mapping[str, str], hang_exit: HangExit | None = None) -> Ended:
    """Run the command to its end, or to its job's hang. Raises UsageError if it cannot be started."""
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror}") from error
    received: list[signal.Signals] = []
    with _forwarding(child, received=received):
        code = child.wait() if hang_exit is None else hang_exit.wait(child)
    if hang_exit is not None and hang_exit.notice is not None:
        received.append(signal.SIGTERM)
    stops = (number for number in received if number in STOPPING)
    return Ended(pid=child.pid, exit_code=code, stop_signal=next(stops, None))


@contextmanager
def _forwarding(child: "subprocess.Popen[bytes]", *, received: list[signal.Signals]) -> Iterator[None]:
    """Forward signals to the child and record them. The child also ignores those that this process ignores (nohup)."""

    def forward(number: int, _frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        if number not in FROM_KEYS or not _in_foreground():
            child.send_signal(number)

    handled = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """True if this process group is in the terminal's foreground."""
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
