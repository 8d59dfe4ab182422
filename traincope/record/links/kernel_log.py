"""New lines of the kernel's log that name an error of the host. Without permission to read the log there are none."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from traincope.events import KernelError
from traincope.record.process.host_limits import ROOT

RECORD_BYTES = 8192
"""Most bytes of one record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg)."""
MAX_RECORDS = 200
"""Most records of one look. A flood of lines is left to the next looks."""
MAX_CHARACTERS = 200

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


class KernelLog:
    """The log from now on."""

    def __init__(self, file: int | None) -> None:
        self._file = file
        self._identity = None if file is None else _identity(file)

    @classmethod
    def open(cls, root: Path = ROOT) -> "KernelLog":
        """Open the log at its end. Without permission, the log has no lines."""
        try:
            file = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return cls(None)
        with suppress(OSError):  # a pipe has no past
            os.lseek(file, 0, os.SEEK_END)
        return cls(file)

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def errors(self) -> Iterator[tuple[KernelError, str]]:
        """Yield each new line that names an error, and its kind."""
        for record in self._records():
            # priority,sequence,microseconds,flags;text, then lines of further values
            text = record.partition(";")[2].partition("\n")[0]
            kind = next((kind for kind, pattern in PATTERNS if pattern.search(text)), None)
            if kind is not None:
                yield kind, text[:MAX_CHARACTERS]

    def close(self) -> None:
        file = self._checked()
        self._file = None
        if file is not None:
            os.close(file)

    def _checked(self) -> int | None:
        """Return the file, unless the training has closed it: its number may then be that of another file."""
        if self._file is not None and _identity(self._file) != self._identity:
            self._file = None
        return self._file

    def _records(self) -> Iterator[str]:
        for _ in range(MAX_RECORDS):
            file = self._checked()
            if file is None:
                return
            try:
                record = os.read(file, RECORD_BYTES)
            except BrokenPipeError:  # records were overwritten before they were read: the next one follows
                continue
            except OSError:
                return
            if not record:
                return
            yield record.decode(errors="replace")


def _identity(file: int) -> tuple[int, int] | None:
    """Return what tells one open file from another; None for a number that is not in use."""
    try:
        status = os.fstat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino
