"""Settled answers of the node's agent about hangs, one JSON line each, for processes that wait for the job."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from traincope.private_files import file_mode
from traincope.store.layout import HANGS_FILE, attempt_directory
from traincope.store.lines import parse


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
    """The hang as `traincope hang --format json` prints it; empty if an earlier version wrote the line."""


def append_notice(run: Path, notice: HangNotice) -> None:
    """Append a notice in one write: the agents of several nodes may do so. Raises OSError."""
    path = attempt_directory(run, notice.attempt) / HANGS_FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode())
    with open(descriptor, "wb", buffering=0) as file:
        file.write(json.dumps(asdict(notice)).encode() + b"\n")


def read_notices(run: Path) -> tuple[HangNotice, ...]:
    """Read the notices of all attempts, in order. Unreadable lines are left out."""
    notices = []
    for path in sorted(run.glob(f"attempt-*/{HANGS_FILE}")):
        lines = path.read_text(errors="replace").split("\n")[:-1]
        notices += [notice for line in lines if (notice := _notice(parse(line))) is not None]
    return tuple(notices)


def _notice(raw: object) -> HangNotice | None:
    if not isinstance(raw, dict):
        return None
    attempt, at_wall_ns, culprits = (raw.get(name) for name in ("attempt", "at_wall_ns", "culprits"))
    if type(attempt) is not int or type(at_wall_ns) is not int or not isinstance(culprits, list):
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
