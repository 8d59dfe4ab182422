"""A local copy of a run behind a URL, for commands that read runs.

A copy holds only the files that a command needs, and only files that changed are fetched again. Copies are in
$XDG_CACHE_HOME/traincope/runs, one directory per URL, readable only by their owner.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from pathlib import Path, PurePosixPath

from traincope.errors import NotARunError
from traincope.private_files import make_directory
from traincope.store.layout import (
    AGENT_LOG,
    HANGS_FILE,
    LAUNCHER_FILE,
    PEER_FILES,
    RANK_FILE,
    ROWS_FILE,
    RUN_FILE,
    TILES_DIRECTORY,
    attempt_number,
)
from traincope.store.lines import parse
from traincope.store.places.archived import ArchivedFiles, is_archived, plain_files
from traincope.store.places.kept_indexes import keep, read_kept
from traincope.store.places.remote import FILE, RemoteFile, RemoteFiles, is_portable, url_of
from traincope.units import size
from traincope.whole_files import aside_path, write_whole

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "XDG_CACHE_HOME"
VERSIONS = ".versions.json"
"""Versions of the fetched files, in the copy."""
MAX_FETCHED = 64
"""Files that are fetched before the versions are written: an interrupted copy continues there."""

ATTEMPTS = 3
"""Attempts to copy a run that is being shipped: a listed file may be gone before it is read."""


class Needs(Enum):
    """The files that a command reads."""

    RECORDS = "records"
    """All but the tiles of viewers and logs."""
    LIST = "list"
    """Manifests, notes, rows of the last attempt, and the report of the last agent."""


def local_copy(place: str | Path, *, needs: Needs = Needs.RECORDS) -> Path:
    """Return `place` itself if it is a path of this machine, otherwise a current copy of the run behind its URL.

    A run directory of this machine that holds archives is read as if it were behind a URL. A URL may be of a folder
    that holds exactly one run. Raises NotARunError, ServerError, UsageError and
    MissingDependencyError.
    """
    url = url_of(place)
    if url is None:
        if not is_archived(Path(place)):
            return Path(place)
        url = f"{FILE}://{Path(place).resolve()}"
    remote = RemoteFiles(url)
    run = _run_below(remote)
    return fetch(RemoteFiles(f"{remote.url}/{run}") if run else remote, needs=needs).directory


def copies_below(place: str, *, needs: Needs = Needs.LIST) -> Path:
    """Return a directory with copies of all runs directly below a URL, or of the run behind it. Raises as above."""
    remote = RemoteFiles(place)
    runs = _manifests(remote)
    if list(runs) == [""]:
        return fetch(remote, needs=needs).directory
    directory = _cache(remote.url) / "runs"
    make_directory(directory, exist_ok=True)
    for stale in set(_names(directory)) - set(runs):
        shutil.rmtree(directory / stale, ignore_errors=True)
    for run in runs:
        fetch(RemoteFiles(f"{remote.url}/{run}"), needs=needs, to=directory / run)
    return directory


def manifests_below(place: str) -> dict[str, str]:
    """Return URL -> `run.json` of all runs directly below a URL, or of the run behind it. Raises as above.

    It makes no copies, and reads one small file per run.
    """
    remote = RemoteFiles(place)
    return {f"{remote.url}/{run}".rstrip("/"): manifest for run, manifest in _manifests(remote).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A copy, and what making it current took."""

    directory: Path
    num_files: int
    num_bytes: int


def fetch(remote: RemoteFiles, *, needs: Needs, to: Path | None = None) -> Fetched:
    """Make the copy of one run current. `to`: its directory, by default in the cache. Raises as `local_copy`."""
    directory = to or _cache(remote.url) / needs.value / PurePosixPath(remote.url).name
    make_directory(directory, exist_ok=True)
    for attempt in range(ATTEMPTS):
        try:
            return _fetch_listed(remote, needs, directory)
        except FileNotFoundError as error:  # an agent replaces files while it ships
            if attempt == ATTEMPTS - 1:
                raise NotARunError(f"{remote.url} changed while it was read ({error}); try again") from error
    raise AssertionError("the last attempt returns or raises")


def _fetch_listed(remote: RemoteFiles, needs: Needs, directory: Path) -> Fetched:
    """Make the copy that of the files as they are listed now. Raises FileNotFoundError if they change meanwhile."""
    found = remote.sizes()
    indexes = read_kept(directory, found)
    archived = ArchivedFiles(remote, found, kept=indexes)
    keep(directory, found, indexes)
    listed = {**plain_files(found), **archived.files}
    _check_names(listed, remote.url)
    needed = _needed(listed, needs)
    versions = _versions(directory)
    for name in versions.keys() - needed.keys():
        (directory / name).unlink(missing_ok=True)
    versions = {name: version for name, version in versions.items() if name in needed}
    stale = [
        name
        for name, file in needed.items()
        if versions.get(name) != file.version or _size(directory / name) != file.size
    ]
    stale.sort(key=lambda name: archived.place(name) if name in archived.files else ("", 0, 0))
    num_bytes = sum(needed[name].size for name in stale)
    if stale:
        logger.info("fetching %d files (%s) from %s", len(stale), size(num_bytes), remote.url)
    for first in range(0, len(stale), MAX_FETCHED):
        part = stale[first : first + MAX_FETCHED]
        _fetch(remote, archived, part, directory, listed)
        versions |= {name: needed[name].version for name in part}
        write_whole(directory / VERSIONS, json.dumps(versions).encode())
    return Fetched(directory=directory, num_files=len(stale), num_bytes=num_bytes)


def _fetch(
    remote: RemoteFiles, archived: ArchivedFiles, names: list[str], directory: Path, listed: Mapping[str, RemoteFile]
) -> None:
    """Fetch aside and rename: an interrupted copy has no half file."""
    for folder in {(directory / name).parent for name in names}:
        make_directory(folder, exist_ok=True)
    aside = {name: aside_path(directory / name) for name in names}
    try:
        remote.fetch({name: path for name, path in aside.items() if name not in archived.files})
        archived.fetch({name: path for name, path in aside.items() if name in archived.files})
        for name, path in aside.items():
            path.chmod(0o600)
            modified = listed[name].modified_seconds
            if modified is not None:
                os.utime(path, (modified, modified))
            path.replace(directory / name)
    finally:
        for path in aside.values():
            path.unlink(missing_ok=True)


def _needed(listed: Mapping[str, RemoteFile], needs: Needs) -> dict[str, RemoteFile]:
    chosen = _is_record if needs is Needs.RECORDS else _for_a_list(listed)
    return {name: file for name, file in listed.items() if chosen(PurePosixPath(name)) and not _is_hidden(name)}


def _is_record(name: PurePosixPath) -> bool:
    return name.parts[0] != TILES_DIRECTORY and name.name != AGENT_LOG and not name.match(PEER_FILES)


def _for_a_list(listed: Mapping[str, RemoteFile]) -> Callable[[PurePosixPath], bool]:
    attempts = {PurePosixPath(name).parts[0] for name in listed}
    numbers = {number: name for name in attempts if (number := attempt_number(Path(name))) is not None}
    last = numbers[max(numbers)] if numbers else ""

    def chosen(name: PurePosixPath) -> bool:
        if name.name in (RUN_FILE, RANK_FILE, LAUNCHER_FILE, HANGS_FILE):
            return True
        if name.parts[0] == TILES_DIRECTORY:
            return name.suffix == ".json"
        return name.parts[0] == last and name.name == ROWS_FILE

    return chosen


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _check_names(listed: Mapping[str, RemoteFile], url: str) -> None:
    """Names from a store are data: none may lead out of the copy, and the copy must be able to have each."""
    folders = {str(folder) for name in listed for folder in PurePosixPath(name).parents}
    for name in listed:
        if not is_portable(name) or name in folders:
            raise NotARunError(f"{url} has a file with the name {name!r}, which is not one of a run")


def _run_below(remote: RemoteFiles) -> str:
    """Name of the only run below the URL; empty if the URL itself is that of a run."""
    runs = list(_manifests(remote))
    if len(runs) == 1:
        return runs[0]
    if runs:
        names = ", ".join(runs[:5]) + (", ..." if len(runs) > 5 else "")
        raise NotARunError(f"{remote.url} holds {len(runs)} runs ({names}); name one of them")
    raise NotARunError(
        f"{remote.url} is not a run: it has no {RUN_FILE}; give the URL a run was shipped to, or check it with `ls`"
    )


def _manifests(remote: RemoteFiles) -> dict[str, str]:
    """Name -> `run.json` of the runs directly below the URL; the name is empty if the URL itself is that of a run."""
    manifest = _manifest(remote, "")
    if manifest is not None:
        return {"": manifest}
    names = [name for name in remote.folders() if not name.startswith(".")]
    return {name: manifest for name in names if (manifest := _manifest(remote, f"{name}/")) is not None}


def _manifest(remote: RemoteFiles, prefix: str) -> str | None:
    try:
        return remote.read(f"{prefix}{RUN_FILE}").decode(errors="replace")
    except (FileNotFoundError, IsADirectoryError):
        return None


def _cache(url: str) -> Path:
    base = Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache")
    return base / "traincope" / "runs" / blake2b(url.encode(), digest_size=8).hexdigest()


def _versions(directory: Path) -> dict[str, str]:
    try:
        raw = parse((directory / VERSIONS).read_text())
    except OSError:
        return {}
    return {str(name): str(version) for name, version in raw.items()} if isinstance(raw, dict) else {}


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.is_dir()]
