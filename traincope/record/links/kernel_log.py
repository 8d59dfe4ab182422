"""New lines of the kernel's log that name an error of the host. Without permission to read the log there are none.

`syslog(2)` needs no file: one of /dev/kmsg would stay open for the whole run, also in the training's forked processes.
"""

import ctypes
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from traincope.events import KernelError
from traincope.record.process.host_limits import ROOT

READ_ALL = 3
"""SYSLOG_ACTION_READ_ALL: the log's last bytes, in whole lines. It removes none."""
READ_BYTES = 1 << 16
"""Bytes of one look. What is older is lost."""
TAIL_CHARACTERS = 2048
"""Characters at the end of a look after which the next one goes on."""
MAX_LINES = 200
"""Most lines of one look that are searched for errors, the latest."""
MAX_CHARACTERS = 200

PREFIX = re.compile(r"<\d+>(?:\[ *(?P<seconds>\d+\.\d+)\](?:\[ *[TC]\d+\])? ?)?")
"""Before each line: its priority, and its time and caller if the kernel is set to print them."""
PATTERNS = (
    (KernelError.XID, re.compile(r"NVRM: Xid")),
    (KernelError.OUT_OF_MEMORY, re.compile(r"[Oo]ut of memory: Killed process")),
    (
        KernelError.BUS,
        re.compile(r"PCIe Bus Error: severity=Uncorrect|AER: Uncorrect|AER: .*fatal error", re.IGNORECASE),
    ),
    (
        KernelError.MACHINE_CHECK,
        re.compile(
            r"Machine Check Exception|event severity: (fatal|recoverable)|EDAC MC\d+: \d+ UE |Memory failure: 0x"
        ),
    ),
    (KernelError.TRANSMIT_TIMEOUT, re.compile(r"NETDEV WATCHDOG: .* timed out")),
)
"""Errors that were corrected are not among them: `Machine check events logged` mostly speaks of such."""


Read = Callable[[], str | None]
"""Function that returns the end of the log, whole lines; None if it may not be read."""


class KernelLog:
    """The log from now on."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._seen = read()

    @classmethod
    def open(cls, root: Path = ROOT) -> "KernelLog":
        return cls(lambda: read_log() if may_ask(root) else None)

    def errors(self) -> Iterator[tuple[KernelError, str]]:
        """Yield each new line that names an error, and its kind."""
        for line in self._new_lines()[-MAX_LINES:]:
            text = PREFIX.sub("", line, count=1)
            kind = next((kind for kind, pattern in PATTERNS if pattern.search(text)), None)
            if kind is not None:
                yield kind, text[:MAX_CHARACTERS]

    def _new_lines(self) -> list[str]:
        before, now = self._seen, self._read()
        if now is None:
            return []
        self._seen = now
        if before is None:
            return []
        tail = before[-TAIL_CHARACTERS:]
        at = now.rfind(tail) if tail else 0
        if at >= 0:
            return now[at + len(tail) :].splitlines()
        # Somebody cleared the log, or there were too many lines: those with a later time are new.
        last = max(map(_seconds, before.splitlines()), default=0.0)
        return [line for line in now.splitlines() if _seconds(line) > last > 0]


def may_ask(root: Path) -> bool:
    """Return whether no filter of system calls guards this thread: one may end the process that asks."""
    try:
        status = (root / "proc/thread-self/status").read_text()
    except OSError:
        return False
    return all(line.split()[1:] == ["0"] for line in status.splitlines() if line.startswith("Seccomp:"))


@cache
def _library() -> ctypes.CDLL:
    """Return the C library. Each `CDLL` makes a class that only the garbage collector frees. Trainings stop it."""
    return ctypes.CDLL(None)


def read_log() -> str | None:
    """Return the end of the kernel's log; None without permission."""
    buffer = ctypes.create_string_buffer(READ_BYTES)
    length = _library().klogctl(READ_ALL, buffer, READ_BYTES)
    return None if length < 0 else buffer.raw[:length].decode(errors="replace")


def _seconds(line: str) -> float:
    """Return the time of a line since the host's start; 0 if it has none."""
    found = PREFIX.match(line)
    return 0.0 if found is None else float(found["seconds"] or 0)
