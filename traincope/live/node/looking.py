"""Look at the processes of ranks of this node: their state, and what they write when asked: the stacks of their threads
and torch's flight recorder.
"""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traincope.record.signals import STACKS_SIGNAL
from traincope.store.job.flight import REQUEST, flight_address
from traincope.store.job.looks import Look, look_at
from traincope.store.job.manifests import RankInfo
from traincope.store.layout import FLIGHT_FILE, STACKS_FILE

MAX_STACK_BYTES = 1 << 18
ANSWER_SECONDS = 1.0
"""Longest wait for the stacks of all asked ranks. A stopped process writes none."""
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A rank of this node."""

    directory: Path
    info: RankInfo


def look_at_ranks(subjects: Sequence[Subject], *, with_stacks: bool) -> dict[int, Look]:
    """Rank -> what is seen of its process now. Ranks whose process does not run or cannot be seen are left out."""
    asked = {subject.directory: size for subject in subjects if with_stacks and (size := _ask(subject)) is not None}
    flights = {
        subject.directory: before_ns
        for subject in subjects
        if with_stacks and (before_ns := _ask_for_flight(subject)) is not None
    }
    stacks = _answers(asked)
    _await_flights(flights)
    looks = {}
    for subject in subjects:
        look = look_at(subject.info.process)
        if look is not None:
            looks[subject.info.coord.rank] = Look(
                at_ns=look.at_ns,
                state=look.state,
                wait_channel=look.wait_channel,
                stack=stacks.get(subject.directory, ""),
                by_agent=True,
            )
    return looks


def _ask(subject: Subject) -> int | None:
    """Ask the rank for its stacks. Returns the bytes already in their file; None if the rank does not answer.

    Only a process that is certainly the rank's and that certainly handles the signal gets it.
    """
    process = subject.info.process
    try:
        size = (subject.directory / STACKS_FILE).stat().st_size
        if process is None or not process.is_running() or not process.handles(STACKS_SIGNAL):
            return None
        os.kill(process.pid, STACKS_SIGNAL)
    except OSError:
        return None
    return size


def _ask_for_flight(subject: Subject) -> int | None:
    """Ask for torch's flight recorder. Returns the time of an earlier answer or 0; None if it cannot be asked."""
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


def _await_flights(asked: Mapping[Path, int]) -> None:
    """Wait until all answers are there. A rank whose C code holds Python's lock gives none."""
    until = time.monotonic() + ANSWER_SECONDS
    while any(_written_ns(directory) == before_ns for directory, before_ns in asked.items()):
        if time.monotonic() > until:
            return
        time.sleep(POLL_SECONDS)


def _written_ns(directory: Path) -> int:
    try:
        return (directory / FLIGHT_FILE).stat().st_mtime_ns
    except OSError:
        return 0


def _answers(asked: Mapping[Path, int]) -> dict[Path, str]:
    """Read what each rank wrote, once it no longer grows."""
    before: dict[Path, str] = {}
    until = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        now = {directory: _read(directory / STACKS_FILE, size) for directory, size in asked.items()}
        if now == before and all(now.values()):
            break
        before = now
    return before


def _read(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(MAX_STACK_BYTES).decode(errors="replace")
    except OSError:
        return ""
