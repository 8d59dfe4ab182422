"""Write files aside and rename them: a path holds the whole file or its old content, also when the disk is full.

`written_aside` is for traincope's own files and directories. `output` is for a path that the user chose, which may be a
link, a pipe or a device. `output` writes into pipes and devices and never replaces them.
"""

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from traincope.private_files import file_mode

ASIDE_BEGIN, ASIDE_END = ".", ".new"
"""Begin and end of the names of what is written aside."""
SPARE_BYTES = 16_384
"""Disk space reserved for the last version of a file."""

_TOKEN = os.urandom(4).hex()
"""Processes of two hosts or containers can have the same id."""
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def aside_path(path: Path) -> Path:
    """Return the name under which this process writes `path` aside, in the same directory."""
    return path.with_name(f"{ASIDE_BEGIN}{path.name}.{os.getpid()}-{_TOKEN}{ASIDE_END}")


@contextmanager
def written_aside(path: Path, *, only_new: bool = False) -> Iterator[Path]:
    """Yield a path for a new file or directory, and rename it to `path` unless the block raises.

    `only_new`: keep an existing file. Raises OSError; the old content then stays.
    """
    new_path = aside_path(path)
    _remove(new_path)
    try:
        yield new_path
        if only_new:
            with suppress(FileExistsError):
                os.link(new_path, path)
        else:
            os.replace(new_path, path)
    finally:
        with suppress(OSError):
            _remove(new_path)


def write_whole(
    path: Path, content: bytes, *, only_new: bool = False, spare: Path | None = None, mode: int | None = None
) -> None:
    """Write `content` to `path`.

    `spare`: a file whose disk blocks are reused if it exists. `mode`: None for that of a run's files. Another applies
    whatever the umask. Raises like `written_aside`.
    """
    with written_aside(path, only_new=only_new) as new_path:
        flags = NEW
        if spare is not None:
            with suppress(OSError):
                if stat.S_ISREG(spare.lstat().st_mode):  # opening a pipe would wait for its reader
                    os.replace(spare, new_path)
                    flags = NEW & ~os.O_EXCL
        with open(os.open(new_path, flags, file_mode() if mode is None else mode), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.truncate()


def write_json(path: Path, value: dict[str, Any], *, only_new: bool = False, last: bool = False) -> None:
    """Write `value` to `path` as JSON. `last`: the file may use the space that `reserve` took."""
    content = (json.dumps(value, indent=1, default=str) + "\n").encode()
    write_whole(path, content, only_new=only_new, spare=_spare(path) if last else None)


def reserve(path: Path) -> None:
    """Reserve disk space for one more version of `path`. Raises OSError if the disk is full."""
    descriptor = os.open(_spare(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, file_mode())
    try:
        os.posix_fallocate(descriptor, 0, SPARE_BYTES)
    finally:
        os.close(descriptor)


def is_stream(path: Path) -> bool:
    """Return whether `path` is a device, a pipe, or an open descriptor such as /dev/stdout."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or _descriptor(path) is not None


@contextmanager
def output(path: Path) -> Iterator[BinaryIO]:
    """Yield a file for the output of a command, to a path that the user chose.

    A device or a pipe is written into. The target of a symbolic link is replaced, and the link stays. A regular file
    appears whole, or its old content stays. Raises OSError.
    """
    if is_stream(path):
        descriptor = _descriptor(path)
        with path.open("wb") if descriptor is None else open(os.dup(descriptor), "wb") as file:
            yield file
        return
    with suppress(FileNotFoundError):
        path.stat()  # raises for a loop of links
    with written_aside(Path(os.path.realpath(path))) as new_path, new_path.open("xb") as file:
        yield file


def _spare(path: Path) -> Path:
    return path.with_name(f"{path.name}.room")


def _descriptor(path: Path) -> int | None:
    """Return the open descriptor of this process that `path` leads to, if any."""
    descriptors = Path(f"/proc/{os.getpid()}/fd")
    while path.is_symlink():
        if path.parent.resolve() == descriptors:
            return int(path.name)
        path = path.parent / path.readlink()
    return None


def _remove(path: Path) -> None:
    """Remove a file, a link or a directory if it exists."""
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
