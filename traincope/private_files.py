"""Modes of the files and directories that traincope creates: by default, only their owner may read them.

A file gets its mode when it is created, and it is not changed later. The process's umask applies in addition.
$TRAINCOPE_UMASK lets others in: `027` gives a run to the group of its files.
"""

import errno
import logging
import os
import stat
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
