"""The manifest of a checkpoint: written last, so a checkpoint without one is not complete."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from traincope.engine.checkpoint.identity import Settings

MANIFEST = "manifest.json"
VERSION = 2
READABLE = (1, 2)
"""Version 1 has no batches that were passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Size and checksum of a file."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "Sum":
        """Read the whole file. Raises OSError."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(bytes=file.tell(), sha256=digest.hexdigest())


def sum_of(content: bytes) -> Sum:
    """Size and checksum of what a file would contain."""
    return Sum(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete checkpoint."""

    step: int
    """Optimizer steps that its parameters have had."""
    passed_over: int = 0
    """Batches that rollbacks have passed over. With `step` these are the consumed batches, without those that a loader
    has prefetched."""
    identity: Settings
    layout: Settings
    files: Mapping[str, Sum]
    """All other files of the checkpoint, by name."""

    @property
    def digest(self) -> str:
        """Checksum of the manifest, which has those of all files: equal for copies of one checkpoint."""
        return _digest(self._values)

    def content(self) -> bytes:
        """The file. Its own checksum is over the rest of it."""
        return (json.dumps({"sha256": self.digest, **self._values}, indent=1) + "\n").encode()

    @property
    def _values(self) -> Mapping[str, object]:
        return {"version": VERSION, **asdict(self)}


class Damaged(Exception):
    """A checkpoint that cannot be loaded. The message is a clause that names the file and what is wrong with it."""


class Missing(Damaged):
    """A file is not there."""


class Unreadable(Damaged):
    """A checkpoint that may be good: this process cannot read it, or this traincope does not know its version."""


def read_manifest(checkpoint: Path) -> Manifest:
    """Read the manifest. Raises Damaged, and Unreadable."""
    path = checkpoint / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise Missing(f"{path} is missing") from error
    except OSError as error:
        raise Unreadable(f"{path} cannot be read ({error.strerror})") from error
    return parse_manifest(content, path)


def parse_manifest(content: bytes, place: Path | str) -> Manifest:
    """Read the content of a manifest. Messages name its `place`. Raises Damaged, and Unreadable."""
    try:
        values = json.loads(content)
        if values.pop("sha256") != _digest(values):
            raise Damaged(f"{place} does not have its checksum")
        version = values.pop("version")
        if version not in READABLE:
            known = " and ".join(map(str, READABLE))
            raise Unreadable(f"{place} has version {version}, but this traincope reads versions {known}")
        files = {name: Sum(**entry) for name, entry in values.pop("files").items()}
        return Manifest(files=files, **values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{place} is not a manifest") from error


def check_file(checkpoint: Path, name: str, saved: Sum, *, whole: bool) -> None:
    """Compare a file's size, and its checksum if `whole`. Raises Damaged, and Unreadable."""
    path = checkpoint / name
    try:
        size = path.stat().st_size
        if size != saved.bytes:
            raise Damaged(f"{path} has {size} bytes instead of {saved.bytes}")
        if whole and Sum.of(path) != saved:
            raise Damaged(f"{path} does not have its checksum")
    except FileNotFoundError as error:
        raise Missing(f"{path} is missing") from error
    except OSError as error:
        raise Unreadable(f"{path} cannot be read ({error.strerror})") from error


def _digest(values: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
