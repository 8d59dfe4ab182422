"""The second tier of checkpoints: a prefix of a bucket, or another place that fsspec reaches.

step-00000100-1a2b3c4d/    steps, and the begin of the manifest's checksum: other content has another folder
    __0_0.distcp, ...      files, each uploaded by the rank that wrote it
    manifest.json          uploaded last; without it the folder is not complete
    damaged.json           the manifest of a checkpoint that was not loaded because it is damaged
"""

import errno
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fsspec.core

from traincope.engine.checkpoint.manifest import (
    MANIFEST,
    Damaged,
    Manifest,
    Missing,
    Sum,
    check_file,
    parse_manifest,
    sum_of,
)
from traincope.engine.checkpoint.places.directory import not_writable, sync_file
from traincope.errors import CheckpointError, ConfigError, MissingDependencyError

DAMAGED = "damaged.json"
ANSWER_SECONDS = 60.0
"""Longest wait for a listing or a small object. Some libraries retry for many minutes."""
TRANSFERS = 8
"""Largest number of files that one rank reads at the same time."""
_FOLDER = re.compile(r"step-(\d{8,})-[0-9a-f]{8}")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A folder in the bucket."""

    name: str
    step: int
    sizes: Mapping[str, int]
    """Bytes of each object, by name."""

    @property
    def set_aside(self) -> bool:
        """It was found damaged."""
        return DAMAGED in self.sizes


class Bucket:
    """Reads and writes at a URL. All methods raise CheckpointError if it cannot be reached."""

    def __init__(self, url: str) -> None:
        """Find the library for the URL, and connect later. Raises ConfigError, and MissingDependencyError."""
        self.url = url.rstrip("/")
        try:
            self._files, path = fsspec.core.url_to_fs(url, skip_instance_cache=True)
        except ImportError as error:
            remedy = "pip install 'traincope[s3]'" if url.startswith("s3") else "install what it asks for"
            raise MissingDependencyError(f"checkpoint.upload = {url!r}: {error}; {remedy}") from error
        except ValueError as error:
            raise ConfigError(f"checkpoint.upload = {url!r}: {error}; give a URL that fsspec knows") from error
        self._root = str(path).rstrip("/")
        self._is_store = bool(self._files.async_impl)
        """The libraries of object stores are asynchronous: they take a `timeout`, and have no folders to make."""
        self._calls = ThreadPoolExecutor(max_workers=TRANSFERS, thread_name_prefix="bucket")

    def stored(self) -> list[Stored]:
        """List all folders, newest first, complete or not."""
        sizes: dict[str, dict[str, int]] = {}
        for path, size in self._call(self._sizes, self._root).items():
            folder, slash, name = path.rpartition("/")
            if slash and _FOLDER.fullmatch(folder):
                sizes.setdefault(folder, {})[name] = size
        found = [Stored(name=name, step=_step(name), sizes=inside) for name, inside in sizes.items()]
        return sorted(found, key=lambda folder: (folder.step, folder.name), reverse=True)

    def read_manifest(self, folder: str) -> Manifest:
        """Read the manifest. Raises Damaged, and Unreadable."""
        return parse_manifest(self._read(folder, MANIFEST), self.place(folder, MANIFEST))

    def read(self, folder: str, name: str, saved: Sum) -> bytes:
        """Read a small object whole. Raises Damaged."""
        content = self._read(folder, name)
        if sum_of(content) != saved:
            raise Damaged(f"{self.place(folder, name)} does not have its checksum")
        return content

    def fetch(self, folder: str, names: Iterable[str], *, manifest: Manifest, to: Path) -> None:
        """Copy objects into a folder of this machine, several at a time, and compare their sums. Raises Damaged."""
        fetching = {name: self._calls.submit(self._fetch, folder, name, to) for name in names}
        for name, fetched in fetching.items():
            self._result(fetched, missing=self.place(folder, name))
            try:
                check_file(to, name, manifest.files[name], whole=True)
            except Damaged as damage:
                raise Damaged(str(damage).replace(str(to / name), self.place(folder, name))) from damage

    def upload(self, file: Path, folder: str) -> None:
        """Write one object."""
        self._call(self._upload, file, self._path(folder, file.name))

    def missing(self, folder: str, files: Mapping[str, Sum]) -> list[str]:
        """Names of the files that are not in a folder with their sizes."""
        sizes = self._call(self._sizes, self._path(folder))
        return [name for name, saved in files.items() if sizes.get(name) != saved.bytes]

    def commit(self, folder: str, manifest: Manifest, *, keep: int) -> None:
        """Make an uploaded checkpoint complete. Of older folders, only the newest complete ones up to `keep` stay.

        Newer folders stay: their upload may run. Those of damaged checkpoints stay too.
        """
        self._call(self._write, self._path(folder, MANIFEST), manifest.content())
        others = [stored for stored in self.stored() if stored.step <= manifest.step and stored.name != folder]
        complete = [stored for stored in others if MANIFEST in stored.sizes and stored.step < manifest.step]
        for stored in others:
            if not stored.set_aside and stored not in complete[: keep - 1]:
                self._remove(stored)

    def set_aside(self, folder: str) -> str:
        """Rename the manifest of a damaged checkpoint, so that it neither is loaded nor counts. Returns its URL."""
        self._call(self._files.mv, self._path(folder, MANIFEST), self._path(folder, DAMAGED))
        return self.place(folder, DAMAGED)

    def place(self, *names: str) -> str:
        """URL of a folder, or of an object in it."""
        return "/".join((self.url, *names))

    def _path(self, *names: str) -> str:
        return "/".join((self._root, *names))

    def _sizes(self, path: str) -> dict[str, int]:
        self._files.invalidate_cache()
        return {
            str(found).removeprefix(path).lstrip("/"): int(entry["size"])
            for found, entry in self._files.find(path, detail=True, **self._limit).items()
        }

    def _read(self, folder: str, name: str) -> bytes:
        path = self._path(folder, name)
        content: bytes = self._result(
            self._calls.submit(lambda: self._files.cat_file(path, **self._limit)), missing=self.place(folder, name)
        )
        return content

    @property
    def _limit(self) -> Mapping[str, float]:
        return {"timeout": ANSWER_SECONDS} if self._is_store else {}

    def _fetch(self, folder: str, name: str, to: Path) -> None:
        try:
            self._files.get_file(self._path(folder, name), str(to / name))
            sync_file(to / name)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise not_writable(to.parent.parent, error) from error
            raise

    def _upload(self, file: Path, path: str) -> None:
        if not self._is_store:  # s3fs would make an absent bucket
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(file), path)

    def _write(self, path: str, content: bytes) -> None:
        with self._files.transaction:  # on a file system: under another name first
            self._files.pipe_file(path, content)

    def _remove(self, stored: Stored) -> None:
        """Remove a folder, its manifest first: a kill in between leaves nothing that looks complete."""
        if MANIFEST in stored.sizes:
            self._call(self._files.rm_file, self._path(stored.name, MANIFEST))
        self._call(lambda: self._files.rm(self._path(stored.name), recursive=True))

    def _call(self, do: Callable[..., Value], *arguments: Any) -> Value:
        return self._result(self._calls.submit(do, *arguments), missing=None)

    def _result(self, call: "Future[Value]", *, missing: str | None) -> Value:
        """Result of a call in a thread of its own: libraries of buckets raise exceptions without a common class.

        An absent object is damage if `missing` names it.
        """
        error = call.exception()
        if isinstance(error, CheckpointError):
            raise error
        if missing is not None and isinstance(error, FileNotFoundError):
            raise Missing(f"{missing} is missing") from error
        if error is not None:
            reason = str(error) or f"no answer in {ANSWER_SECONDS:g} s"
            raise CheckpointError(
                f"{self.url} cannot be used ({type(error).__name__}: {reason}); check the address, the credentials and "
                "the network, or remove checkpoint.upload"
            ) from error
        return call.result()


def folder_of(manifest: Manifest) -> str:
    """Name of a checkpoint's folder."""
    return f"step-{manifest.step:08d}-{manifest.digest[:8]}"


def _step(folder: str) -> int:
    return int(folder.split("-")[1])
