"""Processes that tests started and that still run. They inherit a variable of the process that runs the tests."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

VARIABLE = "STARTED_BY_TESTS"
SECONDS = 30.0
"""Time for the last ones to end, such as an agent that writes what it holds."""
PYTHONS_OWN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes of Python that end with the one that started them."""


def end_all(value: str) -> list[str]:
    """Wait until no process has this value. Kill those that stay, and return their commands."""
    until = time.monotonic() + SECONDS
    while (left := dict(_started(value))) and time.monotonic() < until:
        time.sleep(0.1)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return sorted(left.values())


def _started(value: str) -> Iterator[tuple[int, str]]:
    """Process and command of each; what has just ended, or belongs to another user, is left out."""
    wanted = f"{VARIABLE}={value}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if not any(name in command for name in PYTHONS_OWN):
                    yield int(process.name), command
