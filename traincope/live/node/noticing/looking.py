"""Look at the processes of ranks of this node: their state, and what they write when asked: the stacks of their threads
and torch's flight recorder.
"""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traincope.record.process.signals import STACKS_SIGNAL
from traincope.store.job.flight import REQUEST, flight_address
from traincope.store.job.looks import Look, look_at
from traincope.store.job.manifests import RankInfo
from traincope.store.layout import FLIGHT_FILE, STACKS_FILE

MAX_STACK_BYTES = 1 << 18
LOCKED_SECONDS = 5.0
"""A rank that has not answered for this long runs C code that holds Python's lock."""
ANSWER_SECONDS = 1.0
"""Longest wait for the stacks of all ranks that got the signal."""
STOPPED = "Tt"
"""States of a process that answers nothing until it is continued."""
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A rank of this node."""

    directory: Path
    info: RankInfo


def look_at_ranks(subjects: Sequence[Subject], *, with_stacks: bool) -> dict[int, Look]:
    """Rank -> what is seen of its process now. Ranks whose process does not run or cannot be seen are left out."""
    looks = [(subject, look) for subject in subjects if (look := look_at(subject.info.process)) is not None]
    running = [subject for subject, look in looks if look.state not in STOPPED]
    stacks = _stacks(running) if with_stacks else {}
    return {
        subject.info.coord.rank: Look(
            at_ns=look.at_ns,
            state=look.state,
            wait_channel=look.wait_channel,
            stack=stacks.get(subject.directory, ""),
            by_agent=True,
        )
        for subject, look in looks
    }


def _stacks(subjects: Sequence[Subject]) -> dict[Path, str]:
    """Ask ranks for their stacks and torch's flight recorder.

    A thread of the rank answers, with Python's lock. The signal's handler reads frames without the lock, which can end
    the process if a thread of it runs. So only ranks get the signal whose threads cannot run, because they do not
    answer.
    """
    sizes = {subject.directory: _size(subject) for subject in subjects}
    asked = {subject.directory: before_ns for subject in subjects if (before_ns := _ask(subject)) is not None}
    _await_answers(asked)
    silent = [subject for subject in subjects if _size(subject) == sizes[subject.directory]]
    signalled = [subject.directory for subject in silent if _send_signal(subject)]
    _await_stacks({directory: sizes[directory] for directory in signalled})
    return {directory: _read(directory / STACKS_FILE, size) for directory, size in sizes.items()}


def _ask(subject: Subject) -> int | None:
    """Ask the rank's thread. Returns the time of an earlier answer or 0; None if it cannot be asked."""
    before_ns, process = _written_ns(subject.directory), subject.info.process
    if process is None:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            asking.sendto(REQUEST, flight_address(process))
    except OSError:
        return None
    return before_ns


def _await_answers(asked: Mapping[Path, int]) -> None:
    """Wait until all answers are there."""
    until = time.monotonic() + LOCKED_SECONDS
    while any(_written_ns(directory) == before_ns for directory, before_ns in asked.items()):
        if time.monotonic() > until:
            return
        time.sleep(POLL_SECONDS)


def _send_signal(subject: Subject) -> bool:
    """Signal a process that is certainly the rank's and certainly handles it. Returns whether it did."""
    process = subject.info.process
    try:
        if process is None or not process.is_running() or not process.handles(STACKS_SIGNAL):
            return False
        os.kill(process.pid, STACKS_SIGNAL)
    except OSError:
        return False
    return (subject.directory / STACKS_FILE).exists()


def _await_stacks(signalled: Mapping[Path, int]) -> None:
    """Wait until each file has grown, and grows no longer."""
    before: dict[Path, str] = {}
    until = time.monotonic() + ANSWER_SECONDS
    while signalled and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        now = {directory: _read(directory / STACKS_FILE, size) for directory, size in signalled.items()}
        if now == before and all(now.values()):
            return
        before = now


def _size(subject: Subject) -> int:
    try:
        return (subject.directory / STACKS_FILE).stat().st_size
    except OSError:
        return 0


def _written_ns(directory: Path) -> int:
    try:
        return (directory / FLIGHT_FILE).stat().st_mtime_ns
    except OSError:
        return 0


def _read(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(MAX_STACK_BYTES).decode(errors="replace")
    except OSError:
        return ""
