"""Look at the processes of ranks of this node: their state, their stacks, and torch's flight recorder.

A thread of the rank writes the last two when it is asked. The stacks of a rank that does not answer are read from
outside. No rank gets a signal, unless a person asks for that.
"""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from traincope.record.process.signals import STACKS_SIGNAL
from traincope.store.job.bell import ring
from traincope.store.job.looks import Look, look_at
from traincope.store.job.manifests import RankInfo
from traincope.store.job.outside_stacks import NOT_INSTALLED, Stacks, find_py_spy, read_standing
from traincope.store.layout import BELL_FILE, FLIGHT_FILE, STACKS_FILE

MAX_STACK_BYTES = 1 << 18
LOCKED_SECONDS = 5.0
"""A rank that has not answered for this long runs C code that holds Python's lock."""
SIGNAL_SECONDS = 1.0
"""Longest wait for the stacks of all ranks that got the signal."""
READERS = 8
"""Number of processes that are read from outside at once."""
STOPPED = "Tt"
"""States of a process that answers nothing until it is continued."""
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A rank of this node."""

    directory: Path
    info: RankInfo


def look_at_ranks(subjects: Sequence[Subject], *, with_stacks: bool, by_signal: bool = False) -> dict[int, Look]:
    """Rank -> what is seen of its process now. Ranks whose process does not run or cannot be seen are left out.

    `by_signal`: a rank that does not answer gets a signal if it handles it.
    """
    looks = [(subject, look) for subject in subjects if (look := look_at(subject.info.process)) is not None]
    running = [subject for subject, look in looks if look.state not in STOPPED]
    stacks = _stacks(running, by_signal=by_signal) if with_stacks else {}
    seen = [(subject, look, stacks.get(subject.directory, Stacks())) for subject, look in looks]
    return {
        subject.info.coord.rank: replace(look, stack=each.text, no_stack=each.problem, by_agent=True)
        for subject, look, each in seen
    }


def _stacks(subjects: Sequence[Subject], *, by_signal: bool) -> dict[Path, Stacks]:
    """Ask ranks for their stacks and torch's flight recorder; read the stacks of those that do not answer."""
    sizes = {subject.directory: _size(subject) for subject in subjects}
    asked = {subject.directory: before_ns for subject in subjects if (before_ns := _ask(subject)) is not None}
    _await_answers(asked)
    if by_signal:
        _signal_silent(subjects, sizes)
    written = {directory: _read(directory / STACKS_FILE, size) for directory, size in sizes.items()}
    silent = [subject for subject in subjects if not written[subject.directory]]
    with ThreadPoolExecutor(READERS) as readers:
        outside = dict(zip((each.directory for each in silent), readers.map(_from_outside, silent), strict=True))
    return {directory: Stacks(text=text) for directory, text in written.items() if text} | outside


def _from_outside(subject: Subject) -> Stacks:
    py_spy, process = find_py_spy(), subject.info.process
    if py_spy is None:
        return Stacks(problem=NOT_INSTALLED)
    return Stacks() if process is None else read_standing(process.pid, py_spy=py_spy)


def _signal_silent(subjects: Sequence[Subject], sizes: Mapping[Path, int]) -> None:
    """Let ranks that did not answer write their stacks in the handler of a signal.

    It reads frames without Python's lock, which can end the process if a thread of it runs. The threads of these ranks
    cannot run, because they do not answer. The signal may end a system call of the training.
    """
    silent = [subject for subject in subjects if _size(subject) == sizes[subject.directory]]
    signalled = [subject.directory for subject in silent if _send_signal(subject)]
    _await_stacks({directory: sizes[directory] for directory in signalled})


def _ask(subject: Subject) -> int | None:
    """Ask the rank's thread. Returns the time of an earlier answer or 0; None if it cannot be asked."""
    before_ns = _written_ns(subject.directory)
    try:
        ring(subject.directory / BELL_FILE)
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
    until = time.monotonic() + SIGNAL_SECONDS
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
