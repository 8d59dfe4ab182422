"""Notes on shipping: how far an agent has shipped its host's files, one JSON file per host and attempt.

attempt-000/shipping-HOST-1a2b3c4d.json   on the node, one per destination: what is left
attempt-000/shipped-HOST.json             at the destination: until when its files are there
"""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from traincope.private_files import read_regular
from traincope.store.job.witness import file_name_of
from traincope.store.layout import attempt_directory
from traincope.store.lines import parse
from traincope.topology import Host

logger = logging.getLogger(__name__)

NAMED_VARIABLE = "TRAINCOPE_NAMED"
"""Environment variable of the agent: the run directory as the user knows it."""
WAIT_VARIABLE = "TRAINCOPE_SHIP_WAIT"
DEFAULT_WAIT_SECONDS = 10.0
MAX_WAIT_SECONDS = 600.0
LATE_ROUNDS = 3
LATE_SECONDS = 60.0
"""A host that has not shipped for so many intervals and seconds has stopped shipping."""
LEFT_FILES, SHIPPED_FILES = "shipping-*.json", "shipped-*.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipNote:
    """State of one host's shipping to one destination."""

    host: str
    at_wall_ns: int
    """Records up to this time are at the destination, except one per thread that was being written then."""
    interval_seconds: float
    complete: bool
    """All ranks of the host are over, and all their records are at the destination."""
    destination: str = ""
    """Only on the node."""
    left_files: int = 0
    left_bytes: int = 0
    problem: str | None = None
    """Why the last round did not end."""


def left_path(attempt: Path, host: Host, *, destination: str) -> Path:
    """Path of the note on the node."""
    digest = blake2b(destination.encode(), digest_size=4).hexdigest()
    return attempt / f"shipping-{file_name_of(host)}-{digest}.json"


def shipped_name(host: Host) -> str:
    """Name of the note at the destination."""
    return f"shipped-{file_name_of(host)}.json"


def content_of(note: ShipNote) -> bytes:
    return json.dumps(asdict(note), indent=1).encode() + b"\n"


def is_shipped(run: Path, *, attempt: int, host: Host) -> bool:
    """Return whether all records of a host are at all destinations of its agent."""
    notes = list(_notes(attempt_directory(run, attempt).glob(f"shipping-{file_name_of(host)}-*.json")))
    return bool(notes) and all(note.complete for note in notes)


def left_notes(run: Path) -> tuple[ShipNote, ...]:
    """Notes of this node's agents, of all attempts and destinations."""
    return tuple(_notes(sorted(run.glob(f"attempt-*/{LEFT_FILES}"))))


def shipping_problems(attempt: Path, *, now_wall_ns: int | None = None) -> Iterator[str]:
    """One sentence for each host that stopped to ship before all its records were here."""
    now_ns = time.time_ns() if now_wall_ns is None else now_wall_ns
    for note in _notes(sorted(attempt.glob(SHIPPED_FILES))):
        silent_seconds = (now_ns - note.at_wall_ns) / 1e9
        if not note.complete and silent_seconds > max(LATE_ROUNDS * note.interval_seconds, LATE_SECONDS):
            last = datetime.fromtimestamp(note.at_wall_ns / 1e9, UTC)
            yield (
                f"host {note.host} shipped its records last at {last:%Y-%m-%d %H:%M:%S} UTC, and not to their end; "
                "later ones are missing: if the host still exists, run `traincope ship` there"
            )


def ship_wait_seconds(environment: Mapping[str, str]) -> float:
    """Return the longest wait of a process for the last shipping at its exit."""
    text = environment.get(WAIT_VARIABLE, "")
    if not text:
        return DEFAULT_WAIT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if 0 <= seconds <= MAX_WAIT_SECONDS:
        return seconds
    logger.warning("%s must be seconds from 0 to %g, not %r: ignored", WAIT_VARIABLE, MAX_WAIT_SECONDS, text)
    return DEFAULT_WAIT_SECONDS


def _notes(paths: Any) -> Iterator[ShipNote]:
    for path in paths:
        try:
            raw = parse(read_regular(path).decode(errors="replace"))
        except OSError:
            continue
        note = _note(raw)
        if note is not None:
            yield note


def _note(raw: Any) -> ShipNote | None:
    if not isinstance(raw, dict):
        return None
    at_wall_ns, interval = raw.get("at_wall_ns"), raw.get("interval_seconds")
    if type(at_wall_ns) is not int or not isinstance(interval, int | float):
        return None
    left_files, left_bytes = (raw.get(name) for name in ("left_files", "left_bytes"))
    return ShipNote(
        host=str(raw.get("host", "")),
        at_wall_ns=at_wall_ns,
        interval_seconds=float(interval),
        complete=raw.get("complete") is True,
        destination=str(raw.get("destination", "")),
        left_files=left_files if type(left_files) is int else 0,
        left_bytes=left_bytes if type(left_bytes) is int else 0,
        problem=None if raw.get("problem") is None else str(raw["problem"]),
    )
