"""Settled answers of the node's agent about hangs, one JSON line each, for processes that wait for the job."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from traincope.events import END_OF_TIME_NS
from traincope.private_files import file_mode
from traincope.store.layout import HANGS_FILE, attempt_directory
from traincope.store.lines import parse

MAX_READ_BYTES = 4 << 20
"""What is read of the end of a file: the newest notices of thousands of hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangNotice:
    """One hang that does not end by itself, as far as the agent knows."""

    attempt: int
    at_wall_ns: int
    culprits: tuple[int, ...]
    """Empty if the evidence does not show them."""
    sentence: str
    """Evidence and advice."""
    judged: Mapping[str, Any] = field(default_factory=dict)
    """The hang in brief (`analysis.faults.hangs.noticed`); empty if the notice before has it, or if an earlier version
    wrote the line.
    """


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


def standing_notice(notices: Iterable[HangNotice], *, last_step_ns: int | None) -> HangNotice | None:
    """Return the first notice of the hang in which an attempt ended; None if it completed a step after all of them.

    One that names culprits has precedence: an agent announces a stop once more if later evidence shows them.
    `last_step_ns`: wall time of the end of the last complete step, or None.
    """
    standing = sorted(
        (notice for notice in notices if last_step_ns is None or notice.at_wall_ns > last_step_ns),
        key=lambda notice: (not notice.culprits, notice.at_wall_ns),
    )
    return standing[0] if standing else None


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
    if abs(at_wall_ns) >= END_OF_TIME_NS:
        return None
    ranks = tuple(rank for rank in culprits if type(rank) is int)
    judged, sentence = raw.get("judged"), str(raw.get("sentence", ""))
    return HangNotice(
        attempt=attempt,
        at_wall_ns=at_wall_ns,
        culprits=ranks,
        sentence=sentence,
        judged=judged if isinstance(judged, dict) else {},
    )
