"""Looks at a rank's process from outside: whether it lived, in which state, and where its threads stood.

A rank that hangs writes nothing. There are three other sources: the node's agent writes a line into `looks.jsonl`
while the job stands still; who reads the records on the rank's host can look at the process; and a rank writes its
stacks when it is asked.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.events import Kind
from traincope.private_files import file_mode
from traincope.store.job.process import Process
from traincope.store.layout import LOOKS_FILE, RANK_FILE, SIGNAL_FILES, STACKS_FILE
from traincope.store.lines import parse
from traincope.store.segments.segments import last_instant_ns

KEPT_TIMES_NS = 2_000_000_000
"""`rank.json` is written before the last record. A time this much later than the last record is that of a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The process at one instant. It certainly existed then."""

    at_ns: int
    """Time on the clock of the rank's records: the monotonic clock of its host, which cannot be set."""
    state: str = ""
    """State letter of /proc/PID/stat (proc(5)): R running, S sleeping, D waiting for a device or file, T stopped,
    t stopped by a debugger. Empty if unknown.
    """
    wait_channel: str = ""
    """Function of the kernel in which it slept; empty if unknown."""
    locked: bool = False
    """It could not go on by itself: all its threads waited for locks (`Process.is_locked`)."""
    stack: str = ""
    """Stacks of all threads, as `faulthandler` writes them; empty if none are known."""
    no_stack: str = ""
    """Why its stacks are not known although they were asked for, and what to do about it."""
    system_call: str = ""
    """Number of the system call in which the main thread was; empty if unknown."""
    cpu_ns: int | None = None
    """CPU time of the process until then; None if unknown."""
    by_agent: bool = False
    """The node's agent looked, while the job ran."""


def look_at(process: Process | None) -> Look | None:
    """Look at a process of this host now; None if it does not run or cannot be seen."""
    if process is None or not process.is_running():
        return None
    return Look(
        at_ns=time.monotonic_ns(),
        state=process.state(),
        wait_channel=process.wait_channel(),
        system_call=process.system_call(),
        cpu_ns=process.cpu_ns(),
        locked=process.is_locked(),
    )


def append_look(directory: Path, look: Look) -> None:
    """Append a look of the agent in one write. Raises OSError."""
    values = {name: value for name, value in asdict(look).items() if name != "by_agent"}
    descriptor = os.open(directory / LOOKS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode())
    with open(descriptor, "wb", buffering=0) as file:
        file.write(json.dumps(values).encode() + b"\n")


def read_looks(directory: Path) -> tuple[Look, ...]:
    """The agent's looks at a rank, in order. Empty without a file; unreadable lines are left out."""
    try:
        lines = (directory / LOOKS_FILE).read_bytes().decode(errors="replace").split("\n")[:-1]
    except OSError:
        return ()
    return tuple(look for line in lines if (look := _look(parse(line))) is not None)


def newest_lines(directory: Path, *, max_bytes: int) -> bytes:
    """The agent's newest look that has stacks, and those after it, as far as they fit. Empty without a look."""
    try:
        lines = (directory / LOOKS_FILE).read_bytes().split(b"\n")[:-1]
    except OSError:
        return b""
    with_stack = [
        number
        for number, line in enumerate(lines)
        if (look := _look(parse(line.decode(errors="replace")))) and look.stack
    ]
    kept: list[bytes] = []
    for line in reversed(lines[with_stack[-1] if with_stack else 0 :]):
        if sum(map(len, kept)) + len(kept) + len(line) < max_bytes:
            kept.insert(0, line)
    return b"".join(line + b"\n" for line in kept)


def all_looks(
    directory: Path, records: NDArray[np.void], *, process: Process | None, running: bool | None
) -> tuple[Look, ...]:
    """The agent's looks, those of signals, and one of now if the process runs, in the order of time.

    `records`: of the rank's training thread.
    """
    now = look_at(process) if running else None
    looks = [*read_looks(directory), *_signalled(directory, records), *([] if now is None else [now])]
    return tuple(sorted(looks, key=lambda look: look.at_ns))


def _look(raw: Any) -> Look | None:
    if not isinstance(raw, dict) or type(raw.get("at_ns")) is not int:
        return None
    words = ("state", "wait_channel", "stack", "no_stack", "system_call")
    state, channel, stack, no_stack, system_call = (str(raw.get(name, "")) for name in words)
    cpu_ns = raw.get("cpu_ns")
    return Look(
        at_ns=raw["at_ns"],
        state=state if len(state) == 1 and state.isalpha() else "",
        wait_channel=channel if channel.isidentifier() else "",
        locked=raw.get("locked") is True,
        stack=stack,
        no_stack=no_stack,
        system_call=system_call if system_call.isdecimal() else "",
        cpu_ns=cpu_ns if type(cpu_ns) is int else None,
        by_agent=True,
    )


def _signalled(directory: Path, records: NDArray[np.void]) -> Iterator[Look]:
    """Stacks that signals made the rank write. Their time is that of the file, if the directory has its own times."""
    clocks = records[records["kind"] == Kind.CLOCK]
    if not len(clocks):
        return
    offset_ns = int(clocks["value"][-1]) - int(clocks["start_ns"][-1])
    try:
        if (directory / RANK_FILE).stat().st_mtime_ns - offset_ns > last_instant_ns(records) + KEPT_TIMES_NS:
            return
        for path in (*directory.glob(SIGNAL_FILES), *directory.glob(STACKS_FILE)):
            status = path.stat()
            if status.st_size:
                yield Look(at_ns=status.st_mtime_ns - offset_ns, stack=path.read_text(errors="replace"))
    except OSError:
        return
