"""Writing a file whole or not at all, also when the disk is full by then."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOM_BYTES = 16_384
"""Kept for a file's last version."""


def write_json(path: Path, value: dict[str, Any], *, only_new: bool = False, last: bool = False) -> None:
    """`only_new`: what is there already stays. `last`: it may use the room that was kept.

    Raises OSError where it cannot be written; what was there before then stays.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    content = (json.dumps(value, indent=1, default=str) + "\n").encode()
    try:
        _write(temporary, content, room=_room(path) if last else None)
        if only_new:
            with suppress(FileExistsError):
                os.link(temporary, path)
        else:
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def keep_room(path: Path) -> None:
    """For one more version of `path`. Raises OSError where there is none."""
    descriptor = os.open(_room(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, ROOM_BYTES)
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes, *, room: Path | None) -> None:
    """Into the blocks that were kept, where there are any."""
    if room is not None:
        with suppress(OSError):
            os.replace(room, path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.truncate()


def _room(path: Path) -> Path:
    return path.with_name(f"{path.name}.room")
