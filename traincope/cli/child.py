"""Run a command as if it had been typed instead of ours: same terminal, same signals, same exit code."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from traincope.errors import UsageError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

FROM_KEYS = (signal.SIGINT, signal.SIGQUIT)
"""A terminal sends these for keys, to every process of the group in its foreground: to the child as well."""

KILLED = 128
"""What a shell adds to a signal's number to make an exit code of it."""


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Who sends one of these wants an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that has come to its end."""

    pid: int
    exit_code: int
    """Negative: the signal that ended it."""
    told_to_stop: signal.Signals | None
    """The first signal we were sent that asks for an end."""

    @property
    def shell_code(self) -> int:
        """Its exit code, or 128 + the signal that ended it."""
        return KILLED - self.exit_code if self.exit_code < 0 else self.exit_code


def run_child(command: Sequence[str], *, environment: Mapping[str, str]) -> Ended:
    """Run it to its end. Raises UsageError where it cannot be started."""
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror}") from error
    heard: list[signal.Signals] = []
    with _forwarding(child, heard=heard):
        code = child.wait()
    stops = (number for number in heard if number in STOPPING)
    return Ended(pid=child.pid, exit_code=code, told_to_stop=next(stops, None))


@contextmanager
def _forwarding(child: "subprocess.Popen[bytes]", *, heard: list[signal.Signals]) -> Iterator[None]:
    """Send the child what we are sent, and keep it. What we were started to ignore (nohup), it ignores too."""

    def forward(number: int, _frame: FrameType | None) -> None:
        heard.append(signal.Signals(number))
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
