"""Modes of the files and directories that traincope creates: by default, only their owner may read them.

A file gets its mode when it is created, and it is not changed later. The process's umask applies in addition.
$TRAINCOPE_UMASK lets others in: `027` gives a run to the group of its files.
"""

import errno
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

UMASK_VARIABLE = "TRAINCOPE_UMASK"
DEFAULT_UMASK = 0o077
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def file_mode() -> int:
    """Mode of a new file of a run."""
    return 0o666 & ~_mask(os.environ.get(UMASK_VARIABLE, ""))


def directory_mode() -> int:
    """Mode of a new directory of a run."""
    return 0o777 & ~_mask(os.environ.get(UMASK_VARIABLE, ""))


def private(path: str, flags: int) -> int:
    """The `opener` of `open()` for files of a run."""
    return os.open(path, flags, file_mode())


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file of a run as `os.open` does, and never wait: a pipe or a device in its place is refused.

    Raises OSError.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, file_mode())
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_regular(path: Path, *, last_bytes: int | None = None, flags: int = 0) -> bytes:
    """Read a regular file, or its end, and never wait. Raises OSError, as `open_regular`."""
    with open(open_regular(path, os.O_RDONLY | flags), "rb", buffering=0) as file:
        if last_bytes is None:
            return file.readall()
        file.seek(max(os.fstat(file.fileno()).st_size - last_bytes, 0))
        return file.read(last_bytes)


@contextmanager
def held(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end, unless another thread has closed it: its number may be the training's by then."""
    status = os.fstat(descriptor)
    try:
        yield descriptor
    finally:
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), status):
                os.close(descriptor)


def make_directory(path: Path, *, exist_ok: bool = False) -> None:
    """Create a directory and its missing parents. Raises OSError; FileExistsError only without `exist_ok`."""
    try:
        _make_one(path, exist_ok=exist_ok)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_directory(path.parent, exist_ok=True)
        # Once: /proc and some network mounts answer so although the parent exists.
        _make_one(path, exist_ok=exist_ok)


def _make_one(path: Path, *, exist_ok: bool) -> None:
    try:
        path.mkdir(mode=directory_mode())
    except FileExistsError:
        if not exist_ok or not path.is_dir():
            raise


def restrict_process() -> None:
    """Narrow the umask of this process. Not in a training's process: it creates files of its own."""
    os.umask(os.umask(0o777) | (0o777 & ~directory_mode()))


def check_owner(directory: Path) -> None:
    """Raise PermissionError unless `directory` is a directory of this user that no other user may write to."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        why = "is not a directory"
    elif status.st_uid != os.geteuid():
        why = f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    elif status.st_mode & OTHERS_WRITE:
        why = f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return
    raise PermissionError(errno.EPERM, f"it {why}, so its files cannot be trusted", str(directory))


@cache
def _mask(text: str) -> int:
    """The mask in octal digits. The owner always keeps access."""
    if not text:
        return DEFAULT_UMASK
    try:
        mask = int(text, 8)
    except ValueError:
        mask = -1
    if 0 <= mask <= 0o77:
        return mask
    logger.warning("%s must be two octal digits for group and others, e.g. 027, not %r: ignored", UMASK_VARIABLE, text)
    return DEFAULT_UMASK
