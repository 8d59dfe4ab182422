"""Files behind a URL, by fsspec: S3 and every other store for which a library is installed.

Keys come from the variables and files that the store's own tools use. A URL with a password is refused, because URLs
are shown. Libraries of stores raise exceptions without a common class and may wait for many minutes, so each call runs
in a thread with a limit.
"""

import re
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as Expired
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from traincope.errors import MissingDependencyError, ServerError, UsageError
from traincope.private_files import make_directory
from traincope.store.places.calls import Call, Calls
from traincope.whole_files import write_whole

URL = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}(?=[^/]|/|$)", re.IGNORECASE)
"""The begin of a URL. A `Path` of a URL has lost one of its slashes."""
FILE = "file"
"""Scheme of URLs without a host."""
ANSWER_SECONDS = 60.0
"""Longest wait for a listing or a small file."""
TRANSFER_SECONDS = 600.0
"""Longest wait for one file."""
SLOWEST_BYTES_PER_SECOND = 32 << 10
"""A large file may take as much longer as it takes at this rate."""
TRANSFERS = 8
"""Largest number of calls at the same time."""
MAX_THREADS = 64
"""Largest number of calls that have not returned, with those that were given up."""
MAX_NAME_BYTES = 200
"""File systems take 255 bytes, and files are written aside under a longer name."""
CREDENTIALS = "use the variables, files or roles of the store's own tools, e.g. AWS_ACCESS_KEY_ID"

Value = TypeVar("Value")

_CALLS = Calls(at_once=TRANSFERS, most=MAX_THREADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file behind a URL."""

    size: int
    version: str
    """Changes whenever the content does, as far as the store reports it."""
    modified_seconds: float | None = None
    """Wall time of its last change; None if the store does not report it."""


def url_of(place: str | Path) -> str | None:
    """Return the URL that a command got as a path; None for a path of this machine."""
    text = str(place)
    match = URL.match(text)
    if match is None or (isinstance(place, Path) and place.exists()):
        return None
    scheme, rest = match[1].lower(), text[match.end() :].strip("/")
    return f"{scheme}:///{rest}" if scheme == FILE else f"{scheme}://{rest}"


def check_url(url: str) -> None:
    """Raise UsageError for a URL with a password."""
    try:
        parts = urlsplit(url)
        has_password = parts.password is not None
    except ValueError as error:
        raise UsageError(f"this is not a URL: {error}") from error
    if has_password or "@" in parts.netloc:
        raise UsageError(f"the URL of {parts.scheme}://{parts.hostname} contains a name or a password; {CREDENTIALS}")


class RemoteFiles:
    """The files below a URL. Names are relative, with slashes.

    Methods raise ServerError if the store cannot be reached or refuses, FileNotFoundError for an absent file.
    """

    def __init__(self, url: str) -> None:
        """Find the library for the URL, and connect later. Raises UsageError, and MissingDependencyError."""
        check_url(url)
        self.url = url.rstrip("/")
        is_s3 = url.startswith(("s3:", "s3a:"))
        remedy = "pip install 'traincope[s3]'" if is_s3 else "pip install fsspec, and the library that it names"
        try:
            import fsspec.core

            self._files, path = fsspec.core.url_to_fs(self.url, skip_instance_cache=True, use_listings_cache=False)
        except ImportError as error:
            raise MissingDependencyError(f"{self.url} cannot be opened: {error}; {remedy}") from error
        except (ValueError, TypeError) as error:
            raise UsageError(f"{self.url} cannot be opened: {error}; give a URL that fsspec knows") from error
        self._root = str(path).rstrip("/")
        self._is_local = self.url.startswith(f"{FILE}:")
        """A directory of this machine: its files get the modes of a run's files."""
        self._is_store = bool(self._files.async_impl)
        """The libraries of object stores are asynchronous. Their writes are atomic, and they have no folders to make.
        """

    def sizes(self, below: str = "") -> dict[str, RemoteFile]:
        """List all files below the URL, or below one of its folders, by name."""
        found = self._call(lambda: self._find(self._path(below)), seconds=TRANSFER_SECONDS)
        listed = {str(path).removeprefix(self._root).lstrip("/"): entry for path, entry in found.items()}
        return {name: _file(entry) for name, entry in listed.items() if name}

    def folders(self, below: str = "") -> list[str]:
        """Names of the folders directly below a folder; empty if it does not exist."""
        try:
            found = self._call(lambda: self._files.ls(self._path(below), detail=True), seconds=ANSWER_SECONDS)
        except FileNotFoundError:
            return []
        return sorted(str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in found if _is_folder(entry))

    def read(self, name: str) -> bytes:
        """Read a small file whole."""
        content: bytes = self._call(lambda: self._files.cat_file(self._path(name)), seconds=ANSWER_SECONDS)
        return content

    def read_part(self, name: str, *, start: int, end: int) -> bytes:
        """Read the bytes from `start` to `end` of a file."""
        return self._result(self.begin_part(name, start=start, end=end), seconds=TRANSFER_SECONDS)

    def begin_part(self, name: str, *, start: int, end: int) -> Call[bytes]:
        """Begin to read a part of a file; `end_part` waits for it."""
        path = self._path(name)
        return self._begin(lambda: bytes(self._files.cat_file(path, start=start, end=end)), seconds=TRANSFER_SECONDS)

    def end_part(self, call: Call[bytes]) -> bytes:
        """Wait for a part."""
        return self._result(call, seconds=TRANSFER_SECONDS)

    def fetch(self, names: Mapping[str, Path]) -> None:
        """Copy files to paths of this machine, several at a time. Their directories exist."""
        calls: list[Call[None]] = []
        try:
            for name, target in names.items():
                calls.append(self._begin(_getter(self._files, self._path(name), target), seconds=TRANSFER_SECONDS))
            for call in calls:
                self._result(call, seconds=TRANSFER_SECONDS)
        finally:
            for call in calls:
                call.give_up()

    def write(self, name: str, content: bytes) -> None:
        """Write a file. Nobody sees a part of it."""
        seconds = TRANSFER_SECONDS + len(content) / SLOWEST_BYTES_PER_SECOND
        self._call(lambda: self._write(self._path(name), content), seconds=seconds)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        try:
            self._call(lambda: self._files.rm_file(self._path(name)), seconds=ANSWER_SECONDS)
        except FileNotFoundError:
            return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _find(self, path: str) -> dict[str, dict[str, Any]]:
        self._files.invalidate_cache()
        found: dict[str, dict[str, Any]] = self._files.find(path, detail=True)
        return found

    def _write(self, path: str, content: bytes) -> None:
        if self._is_local:
            make_directory(Path(path).parent, exist_ok=True)
            write_whole(Path(path), content)
            return
        if self._is_store:
            self._files.pipe_file(path, content)
            return
        folder, _, name = path.rpartition("/")
        self._files.makedirs(folder, exist_ok=True)
        aside = f"{folder}/.{name}.new"
        self._files.pipe_file(aside, content)
        self._files.mv(aside, path)

    def _call(self, do: Callable[[], Value], *, seconds: float) -> Value:
        return self._result(self._begin(do, seconds=seconds), seconds=seconds)

    def _begin(self, do: Callable[[], Value], *, seconds: float) -> Call[Value]:
        try:
            return _CALLS.begin(do, seconds=seconds)
        except Expired:
            raise self._silence(seconds) from None

    def _silence(self, seconds: float) -> ServerError:
        return ServerError(f"{self.url} did not answer in {seconds:g} s; check the address and the network")

    def _result(self, call: Call[Value], *, seconds: float) -> Value:
        try:
            error = call.exception(seconds)
        except Expired:
            raise self._silence(seconds) from None
        if isinstance(error, FileNotFoundError):
            raise error
        if error is not None:
            raise ServerError(
                f"{self.url} cannot be used ({type(error).__name__}: {error}); check the address, the credentials and "
                "the network"
            ) from error
        return call.result()


def is_portable(name: str) -> bool:
    """Return whether any machine can have a file with this relative name, and has it inside of its run directory."""
    try:
        parts = name.encode().split(b"/")
    except UnicodeEncodeError:  # file systems take any bytes
        return False
    is_inside = bool(parts[0]) and b".." not in parts
    return is_inside and not {"\\", "\0"} & set(name) and max(map(len, parts)) <= MAX_NAME_BYTES


def _getter(files: Any, path: str, target: Path) -> Callable[[], None]:
    return lambda: files.get_file(path, str(target))


def _file(entry: Mapping[str, Any]) -> RemoteFile:
    """A version is the store's checksum, or otherwise the time and the size."""
    modified = entry.get("LastModified", entry.get("mtime", entry.get("modified", entry.get("created"))))
    checksum = entry.get("ETag", entry.get("etag", entry.get("md5Hash")))
    size = int(entry.get("size") or 0)
    return RemoteFile(
        size=size,
        version=f"{checksum if checksum is not None else modified}-{size}",
        modified_seconds=_seconds(modified),
    )


def _seconds(modified: Any) -> float | None:
    if isinstance(modified, int | float):
        return float(modified)
    return float(modified.timestamp()) if hasattr(modified, "timestamp") else None


def _is_folder(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == "directory"
