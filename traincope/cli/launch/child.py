"""Run a command as a child with the same terminal, signals and exit code as if it had been typed."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from traincope.cli.launch.hang_exit import HangExit
from traincope.errors import UsageError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)
"""A terminal sends these on key presses to all processes of its foreground group, so also to the child."""

KILLED = 128
"""A shell's exit code after a signal is 128 + the signal's number."""

WAIT_SECONDS = 1.0

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
    signals = _Signals()
    with signals.forwarded():
        try:
            child = subprocess.Popen(command, env=environment)
        except OSError as error:
            raise UsageError(f"cannot start {command[0]}: {error.strerror}") from error
        signals.pass_to(child)
        code = _exit_code(child) if hang_exit is None else hang_exit.wait(child)
    received = signals.received
    if hang_exit is not None and hang_exit.notice is not None:
        received.append(signal.SIGTERM)
    stops = (number for number in received if number in STOPPING)
    return Ended(pid=child.pid, exit_code=code, stop_signal=next(stops, None))


def _exit_code(child: "subprocess.Popen[bytes]") -> int:
    """Wait for the end. A wait without a limit would miss a signal that arrives just before its system call: Python
    runs the handler after the call.
    """
    while True:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(WAIT_SECONDS)


class _Signals:
    """Forwards signals to the child and records them, also those that arrive while the child is being started."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []

    @contextmanager
    def forwarded(self) -> Iterator[None]:
        """Handle the signals in the block. The child also ignores those that this process ignores (nohup)."""
        handled = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._receive) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def pass_to(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        self._forward()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
        if number not in FROM_KEYS or not _in_foreground():
            self._waiting.append(number)
            self._forward()

    def _forward(self) -> None:
        while self._child is not None:
            try:
                number = self._waiting.pop(0)
            except IndexError:  # also if a signal that arrived here has forwarded it
                return
            self._child.send_signal(number)


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
