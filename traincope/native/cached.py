"""Compiled libraries in the user's cache: where they are, and whether one can be trusted. Nothing here imports torch.

The last bytes of a library are the hash of those before, so a damaged file is not loaded.
"""

import os
import platform
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from traincope.private_files import OTHERS_WRITE, check_owner, read_regular

VARIABLE = "TRAINCOPE_NATIVE"
CACHE_VARIABLE = "XDG_CACHE_HOME"
MARK = b"traincope sha256 "
BUILD = "traincope doctor --build-native"


class Use(StrEnum):
    """Values of $TRAINCOPE_NATIVE."""

    AUTO = "auto"
    """The native recorder where its library is built for this torch, otherwise the Python hooks."""
    OFF = "off"
    """The Python hooks, and the decoder in Python."""
    REQUIRE = "require"
    """As `auto`, but a training without the native recorder logs the reason, and `traincope doctor` fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A library, or why it is missing."""

    path: Path | None
    why: str


def resolved_use() -> Use:
    """The value of $TRAINCOPE_NATIVE. Any other value is `auto`."""
    value = os.environ.get(VARIABLE, "").lower()
    return Use(value) if value in tuple(Use) else Use.AUTO


def name_of(kind: str, sources: Iterable[Path]) -> str:
    """Name of a library that depends on no torch, for this machine and these sources."""
    digest = sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    digest.update(str(platform.libc_ver()).encode())
    return f"{kind}-{platform.machine()}-{digest.hexdigest()[:16]}.so"


def find_built(name: str) -> Found:
    """Search the user's cache for a library that depends on no torch."""
    path = cache_directory() / name
    try:
        check(path)
    except FileNotFoundError:
        return Found(path=None, why=f"it is not built ({BUILD})")
    except OSError as error:
        return Found(path=None, why=f"{path} is not used: {error.strerror}")
    return Found(path=path, why=str(path))


def cache_directory() -> Path:
    base = os.environ.get(CACHE_VARIABLE) or Path(os.path.expanduser("~")) / ".cache"
    return Path(base).absolute() / "traincope" / "native"


def check(path: Path) -> None:
    """Raise OSError unless the file is whole, and only this user (or root) may write to it and its directory."""
    status = path.lstat()
    check_owner(path.parent)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & OTHERS_WRITE or not stat.S_ISREG(status.st_mode):
        raise PermissionError(1, "other users can write to it, or it belongs to one", str(path))
    content = read_regular(path)
    library, mark, written = content.rpartition(MARK)
    if not mark or sha256(library).hexdigest().encode() != written:
        raise OSError(5, "it is damaged", str(path))
