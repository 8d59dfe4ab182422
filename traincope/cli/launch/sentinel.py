"""A process that shows which signals go to all processes, and which to this one only.

Keys of a terminal, `kill -- -GROUP`, `timeout`, systemd and SLURM send a signal to each process of a group or of a job,
so the command has it already. It needs only those that were sent to this process alone. A process cannot tell the two
apart by itself.
"""

import ctypes
import os
import signal
from contextlib import suppress
from typing import NoReturn

from traincope.cli.launch.parent_death import PR_SET_NAME, control, end_with_parent

NAME = b"signal-sentinel"
"""Name of the process in `ps`. Without it, `pkill traincope` would look like a signal to all."""
ARG_START, ARG_END = 45, 46
"""Fields of /proc/PID/stat behind the program's name: where the command line is in memory."""


class Sentinel:
    """A child in the same process group that lets all signals wait: /proc lists them as pending."""

    def __init__(self) -> None:
        self._pid = _start()
        self._seen: set[int] = set()

    def has_seen(self, number: int) -> bool:
        """True if this signal went to the sentinel too, once per signal. False too if that cannot be known."""
        pending = _pending(self._pid)
        if pending:
            self._seen |= pending
            old, self._pid = self._pid, _start()
            _end(old)
        if number not in self._seen:
            return False
        self._seen.discard(number)
        return True

    def end(self) -> None:
        _end(self._pid)
        self._pid = None


def _start() -> int | None:
    parent, before = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _stand(parent)
        return pid
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(pid: int | None) -> None:
    if pid is not None:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED)


def _pending(pid: int | None) -> set[int]:
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        bits = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
    except (OSError, KeyError, ValueError):
        return set()
    return {number for number in signal.valid_signals() if bits >> (number - 1) & 1}


def _stand(parent: int) -> NoReturn:
    """Wait for the parent's end, with no open file: a reader waits until all writers of a pipe have closed it."""
    try:
        end_with_parent(signal.SIGKILL, parent=parent)
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                os.close(int(descriptor))
        with suppress(OSError, LookupError, ValueError):
            _rename()
        while True:
            signal.pause()
    finally:
        os._exit(0)


def _rename() -> None:
    control(PR_SET_NAME, NAME)
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    begin, end = int(fields[ARG_START]), int(fields[ARG_END])
    ctypes.memset(begin, 0, end - begin)
