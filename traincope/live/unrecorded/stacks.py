"""Stacks of another process's threads, by py-spy, which runs no code in it.

Python's frames are read while the process runs on. C frames too need it to stop, for some milliseconds.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincope.live.unrecorded.processes import NEEDS_ACCESS

PROGRAM = "py-spy"
SECONDS = 20.0
TRIES = 3
"""The process runs on while it is read, so a reading may fail."""
DENIED = ("permission denied", "operation not permitted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """The stacks of one process, or why there are none."""

    text: str = ""
    """In the format of `faulthandler`: the innermost frame first, the main thread last."""
    problem: str = ""


def find_py_spy() -> str | None:
    """Path of py-spy: next to this Python, or on PATH."""
    return shutil.which(PROGRAM, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def read_stacks(pid: int, *, py_spy: str, native: bool = False) -> Stacks:
    """Read the stacks of a process. `native`: with C frames; the process is stopped while it is read."""
    command = [py_spy, "dump", "--native" if native else "--nonblocking", "--json", "--pid", str(pid)]
    problem = ""
    for _ in range(TRIES):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if not done.returncode:
                return Stacks(text=_as_text(json.loads(done.stdout), pid))
            problem = done.stderr.strip()
        except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as error:
            problem = str(error)
        if any(word in problem.lower() for word in DENIED):
            return Stacks(problem=f"py-spy may not read the processes; {NEEDS_ACCESS}")
    return Stacks(problem=f"py-spy could not read process {pid}: {(problem.splitlines() or ['no message'])[0]}")


def _as_text(threads: Sequence[Any], pid: int) -> str:
    in_order = sorted(threads, key=lambda thread: thread["os_thread_id"] == pid)
    return "\n".join(
        f"Thread 0x{thread['thread_id']:x} (most recent call first):\n"
        + "".join(
            f'  File "{frame["filename"]}", line {frame["line"]} in {frame["name"]}\n' for frame in thread["frames"]
        )
        for thread in in_order
    )
