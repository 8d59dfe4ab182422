"""Settled answers of the node's agent about stops, one JSON line each, for processes that wait for the job."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from traincope.events import END_OF_TIME_NS
from traincope.private_files import file_mode
from traincope.store.layout import HANGS_FILE, attempt_directory
from traincope.store.lines import parse

MAX_READ_BYTES = 4 << 20
"""What is read of the end of a file: the newest notices of thousands of hosts."""


class StopState(StrEnum):
    """State of a stop; the value is its name in JSON."""

    STALL = "stall"
    """It may end by itself."""
    HANG = "hang"
    """It does not end by itself: evidence or its length shows that, or the job ended in it."""
    OVER = "over"
    """It ended by itself: the job went on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangNotice:
    """One stop, as far as the agent knows it."""

    attempt: int
    at_wall_ns: int
    culprits: tuple[int, ...]
    """Empty if the evidence does not show them."""
    sentence: str
    """Evidence and advice."""
    state: str = StopState.HANG
    ends_job: bool = False
    """It has lasted long enough for `--on-hang=exit`."""
    judged: Mapping[str, Any] = field(default_factory=dict)
    """The hang in brief (`analysis.faults.hangs.noticed`); empty if the notice before has it, or if an earlier version
    wrote the line.
    """
    next_step: int | None = None
    """Number of the first step that no rank had completed when it was judged; None if an earlier version wrote the
    line.
    """

    @property
    def since_ns(self) -> int | None:
        """Begin of the hang; None if the notice does not have it."""
        return _instant(self.judged.get("since"))

    @property
    def until_ns(self) -> int:
        """Latest known instant of the hang."""
        since_ns, lasted_ns = self.since_ns, _instant(self.judged.get("lasted_ns"))
        return self.at_wall_ns if since_ns is None or lasted_ns is None else since_ns + lasted_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the ranks of an attempt have done, as far as its reader knows. Times are wall times in ns."""

    next_steps: Mapping[int, int] = field(default_factory=dict)
    """Rank -> number of the first step that it has not completed; without ranks that ended cleanly."""
    last_step_ns: int | None = None
    """End of the last complete step of any rank: notices of earlier versions have no number of a step."""
    moved_ns: Mapping[int, int] = field(default_factory=dict)
    """Rank -> the last instant at which it began or ended something by itself; empty where records are not read."""


def append_notice(run: Path, notice: HangNotice) -> None:
    """Append a notice in one write: the agents of several nodes may do so. Raises OSError."""
    path = attempt_directory(run, notice.attempt) / HANGS_FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode())
    with open(descriptor, "wb", buffering=0) as file:
        file.write(json.dumps(asdict(notice)).encode() + b"\n")


def read_notices(run: Path) -> tuple[HangNotice, ...]:
    """Read the notices of all attempts, in order; of each, those in the last `MAX_READ_BYTES`. Unreadable lines are
    left out.
    """
    notices = []
    for path in sorted(run.glob(f"attempt-*/{HANGS_FILE}")):
        lines = _end(path).decode(errors="replace").split("\n")[:-1]
        notices += [notice for line in lines if (notice := _notice(parse(line))) is not None]
    return tuple(notices)


def stands(notice: HangNotice, progress: Progress) -> bool:
    """True unless the job is known to have gone on: the culprits completed a later step, or did something after it."""
    return notice.state != StopState.OVER and not _is_stepped(notice, progress) and not _is_moved(notice, progress)


def standing_notice(notices: Iterable[HangNotice], progress: Progress) -> HangNotice | None:
    """Return the first notice that stands, of the newest stop; None if the job went on.

    A stop that began after the notices before it is another one. Of a stop, those notices count that name culprits,
    if any does: an agent announces a stop once more if later evidence shows them.
    """
    stop: list[HangNotice] = []
    for notice in sorted(notices, key=lambda notice: notice.at_wall_ns):
        if notice.state == StopState.OVER:
            stop = []
        if notice.state == StopState.OVER or _is_stepped(notice, progress):
            continue
        if stop and notice.since_ns is not None and notice.since_ns > stop[-1].at_wall_ns:
            stop = []
        stop.append(notice)
    named = [notice for notice in stop if notice.culprits]
    return next((notice for notice in named or stop if not _is_moved(notice, progress)), None)


def _is_stepped(notice: HangNotice, progress: Progress) -> bool:
    """True if the culprits, or all ranks if none of them is known here, completed a later step. By its number: hosts'
    clocks differ, and steps end later than rows show. Ranks that wait may be a step ahead of those that its agent saw.
    """
    if notice.next_step is not None:
        of_culprits = [progress.next_steps[rank] for rank in notice.culprits if rank in progress.next_steps]
        return min(of_culprits or progress.next_steps.values(), default=0) > notice.next_step
    return progress.last_step_ns is not None and progress.last_step_ns >= notice.at_wall_ns


def _is_moved(notice: HangNotice, progress: Progress) -> bool:
    """True if a culprit went on. Hosts' wall clocks must differ by less than a hang lasts until it is judged."""
    return any(progress.moved_ns.get(rank, notice.until_ns) > notice.until_ns for rank in notice.culprits)


def _end(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - MAX_READ_BYTES, 0))
        return file.read(MAX_READ_BYTES)


def _notice(raw: object) -> HangNotice | None:
    if not isinstance(raw, dict):
        return None
    attempt, at_wall_ns, culprits = (raw.get(name) for name in ("attempt", "at_wall_ns", "culprits"))
    if type(attempt) is not int or type(at_wall_ns) is not int or not isinstance(culprits, list):
        return None
    if _instant(at_wall_ns) is None:
        return None
    ranks = tuple(rank for rank in culprits if type(rank) is int)
    judged, sentence, next_step = raw.get("judged"), str(raw.get("sentence", "")), raw.get("next_step")
    return HangNotice(
        attempt=attempt,
        at_wall_ns=at_wall_ns,
        culprits=ranks,
        sentence=sentence,
        state=str(raw.get("state", "hang")),
        ends_job=raw.get("ends_job") is True,
        judged=judged if isinstance(judged, dict) else {},
        next_step=next_step if type(next_step) is int else None,
    )


def _instant(value: object) -> int | None:
    """None for what no clock shows."""
    return value if type(value) is int and abs(value) < END_OF_TIME_NS else None
