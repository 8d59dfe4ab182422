"""Stacks of another process's threads, read from outside by py-spy: no signal, and no code in that process.

Python's frames are read while the process runs on. C frames too need it to stop, for some milliseconds. A process that
moves while it is read may show frames that never were, so `read_standing` keeps only what two readings agree on.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincope.store.job.process import Process

PROGRAM = "py-spy"
SECONDS = 20.0
CORE_SECONDS = 5.0
"""Longest wait for a process that gets no core. Then it is not known whether it stands."""
PAUSE_SECONDS = 0.01
TRIES = 3
"""The process runs on while it is read, so a reading may fail."""
DENIED = ("permission denied", "operation not permitted")
NEEDS_ACCESS = (
    "run this command as the job's user or as root; a container also needs the capability SYS_PTRACE, "
    "and kernel.yama.ptrace_scope must be 0 (1 is enough for the agent that the job started)"
)
HOLDS_LOCK = "holds Python's lock"
"""Words in the head of the thread that holds the lock."""
NOT_INSTALLED = f"{PROGRAM} is not installed: pip install 'traincope[stacks]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """The stacks of one process, or why there are none."""

    text: str = ""
    """Text in the format of `faulthandler`: the innermost frame first, the main thread last."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Thread:
    frames: str
    """Lines of the frames, in the format of `faulthandler`."""
    holds_lock: bool


_Threads = dict[str, _Thread]
"""Identity of a thread as `faulthandler` writes it -> what it shows, the main thread last."""


def find_py_spy() -> str | None:
    """Path of py-spy: next to this Python, or on PATH."""
    return shutil.which(PROGRAM, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def read_stacks(pid: int, *, py_spy: str, native: bool = False) -> Stacks:
    """Read the stacks of a process once. `native`: with C frames; the process is stopped while it is read."""
    threads = _read(pid, py_spy=py_spy, native=native)
    return Stacks(problem=threads) if isinstance(threads, str) else Stacks(text=_as_text(threads))


def read_standing(pid: int, *, py_spy: str) -> Stacks:
    """Read the stacks of the threads that stand: two readings show the same frames. The main thread must, and it must
    have had a core in between if it wanted one.
    """
    before = _read(pid, py_spy=py_spy)
    for _ in range(TRIES):
        if not _gets_a_core(pid):
            return Stacks(problem=f"process {pid} waits for a core of its host: whether it stands cannot be seen")
        now = _read(pid, py_spy=py_spy)
        if isinstance(before, str) or isinstance(now, str):
            return Stacks(problem=now if isinstance(now, str) else str(before))
        standing = {
            name: _Thread(seen.frames, seen.holds_lock and now[name].holds_lock)
            for name, seen in before.items()
            if name in now and seen.frames == now[name].frames
        }
        if standing and next(reversed(standing)) == next(reversed(now)):
            return Stacks(text=_as_text(standing))
        before = now
    return Stacks(problem=f"process {pid} moves: two readings of its stack never agreed")


def _gets_a_core(pid: int) -> bool:
    """Wait until the main thread sleeps or has run. Returns False if it waits for a core all the time."""
    process, began_ns, until = Process.of(pid), _on_core_ns(pid), time.monotonic() + CORE_SECONDS
    while process is not None and process.state() == "R" and _on_core_ns(pid) == began_ns:
        if time.monotonic() > until:
            return False
        time.sleep(PAUSE_SECONDS)
    return True


def _on_core_ns(pid: int) -> int:
    """Time that the main thread has had a core so far (Documentation/scheduler/sched-stats.rst of the kernel)."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.monotonic_ns()  # unknown: it may have run


def _read(pid: int, *, py_spy: str, native: bool = False) -> _Threads | str:
    """Return the threads, or the sentence that says why they cannot be read."""
    command = [py_spy, "dump", "--native" if native else "--nonblocking", "--json", "--pid", str(pid)]
    problem = ""
    for _ in range(TRIES):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if not done.returncode:
                return _threads(json.loads(done.stdout), pid, native=native)
            problem = done.stderr.strip()
        except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as error:
            problem = str(error)
        if any(word in problem.lower() for word in DENIED):
            return f"{PROGRAM} may not read the processes; {NEEDS_ACCESS}"
    return f"{PROGRAM} could not read process {pid}: {(problem.splitlines() or ['no message'])[0]}"


def _threads(raw: Sequence[Any], pid: int, *, native: bool) -> _Threads:
    """Decode what py-spy wrote. A frame of Python without file or line was read while it changed."""
    in_order = sorted(raw, key=lambda thread: thread["os_thread_id"] == pid)
    return {
        f"0x{thread['thread_id']:x}": _Thread(
            "".join(
                f'  File "{frame["filename"]}", line {frame["line"]} in {frame["name"]}\n'
                for frame in thread["frames"]
                if native or (frame["filename"] and frame["line"] > 0)
            ),
            bool(thread["owns_gil"]),
        )
        for thread in in_order
    }


def _as_text(threads: _Threads) -> str:
    return "\n".join(
        f"Thread {name}{f' {HOLDS_LOCK}' if thread.holds_lock else ''} (most recent call first):\n{thread.frames}"
        for name, thread in threads.items()
    )
