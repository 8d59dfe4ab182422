"""Node-local place of a run's records, if its directory is on a network file system.

A record must not wait for a network. So the ranks of a node record below $TMPDIR, in /dev/shm or below /tmp, in a
directory with the form of a run directory. The node's agent ships it to the run directory, which stays the name of the
run. A pointer in the user's directory of the node (`lock.node_directory`) names the place: the ranks of a node may have
different $TMPDIRs, and they must agree.
"""

import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path

from traincope.private_files import check_owner, make_directory, read_regular
from traincope.store.layout import RUN_FILE, attempt_directory
from traincope.store.lock import SHARED_MEMORY, make_node_directory, node_directory
from traincope.store.places.mounts import mount_of
from traincope.whole_files import write_whole

logger = logging.getLogger(__name__)

MIN_FREE_BYTES = 512 << 20
"""A smaller place is not used: containers often have 64 MiB in /dev/shm, and the training needs them."""
SHARE_OF_MEMORY = 8
"""Records take at most this fraction (one in so many) of the free space of a file system in memory."""
SHARE_OF_DISK = 2
THREADS_PER_RANK = 4
"""Writing threads of a rank that the space is divided by."""
POINTER = ".run"
"""Extension of a pointer."""
KEPT_SECONDS = 7 * 86_400.0
"""Age from which a pointer to nothing is removed."""
CHOICES = 3
"""Most places that are tried. Other ranks choose at the same time."""
LINE_BREAKS = "\n\r"


class Local(StrEnum):
    """Where ranks record."""

    AUTO = "auto"
    """Node-local if the run directory is on a network file system."""
    ON = "on"
    """Node-local always."""
    OFF = "off"
    """In the run directory always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLocal:
    """The node-local place of a run, or of a directory in which runs get a directory each."""

    named: Path
    """The directory whose name the user knows, absolute."""
    directory: Path
    """The place on this node."""


def local_place(named: Path, *, local: Local, environment: Mapping[str, str] = os.environ) -> NodeLocal | None:
    """Choose the node-local place of `named` and create it, or return the one that another rank chose.

    None: record in `named` itself. Raises OSError if the place cannot be created; record in `named` then.
    """
    if local is Local.OFF or (local is Local.AUTO and not is_on_network(named)):
        return None
    make_node_directory()
    pointer = _pointer(named)
    _remove_old_pointers()
    for _ in range(CHOICES):
        chosen = _target(pointer)
        if chosen is None:
            base = local_base(environment)
            if base is None:
                return None
            _claim(pointer, base / pointer.name.removesuffix(POINTER), named=named)
            chosen = _target(pointer)
        if chosen is not None and _is_made(chosen):
            return NodeLocal(named=named, directory=chosen)
        if chosen is not None and _target(pointer) == chosen:
            pointer.unlink(missing_ok=True)
    return None


def local_base(environment: Mapping[str, str]) -> Path | None:
    """Return this user's directory in the first local place with room; None if there is none."""
    return next(_bases(environment), None)


def is_on_network(path: Path) -> bool:
    """Return whether a path is on a network file system. False if that is unknown."""
    mount = mount_of(path)
    return mount is not None and mount.is_remote


def recorded_at(run: Path) -> Path:
    """Return the directory in which ranks of this node record, or did, the run of this name; `run` itself otherwise."""
    run = run.absolute()
    for named, below in ((run, ""), (run.parent, run.name)):
        target = _target(_pointer(named))
        if target is not None and (target / below).is_dir():
            return target / below
    return run


def local_runs() -> Iterator[NodeLocal]:
    """Yield all places of this user on this node that have not been removed."""
    with suppress(OSError):
        for pointer in sorted(node_directory().glob(f"*{POINTER}")):
            target, named = _target(pointer), _named(pointer)
            if target is not None and named is not None and target.is_dir():
                runs = (
                    [target]
                    if (target / RUN_FILE).is_file()
                    else sorted(path.parent for path in target.glob(f"*/{RUN_FILE}"))
                )
                for run in runs:
                    yield NodeLocal(named=named / run.relative_to(target), directory=run)


def named_run(run: Path) -> Path | None:
    """Return the run directory whose records are in `run` on this node; None if `run` is not such a place."""
    return next((each.named for each in local_runs() if each.directory.resolve() == run.resolve()), None)


def remove_local(run: Path, *, attempt: int) -> None:
    """Remove an attempt whose records are elsewhere, and the run on this node if it has nothing else. Raises OSError.

    The pointer stays: a rank of the next attempt may have read it.
    """
    for leftover in run.glob(".removed-*"):  # of an agent that was killed here
        shutil.rmtree(leftover)
    removed = run / f".removed-{attempt}"
    attempt_directory(run, attempt).rename(removed)
    shutil.rmtree(removed)
    if any(path.is_dir() for path in run.iterdir()):
        return
    for path in run.iterdir():
        path.unlink(missing_ok=True)
    with suppress(OSError):  # a rank has just begun here
        run.rmdir()


def _remove_old_pointers() -> None:
    """Remove pointers to places that are gone for days."""
    for pointer in node_directory().glob(f"*{POINTER}"):
        with suppress(OSError):
            target = _target(pointer)
            is_old = time.time() - pointer.stat().st_mtime > KEPT_SECONDS
            if is_old and (target is None or not target.exists()):
                pointer.unlink()


def thread_budget(directory: Path, *, disk_budget_bytes: int, ranks: int) -> int:
    """Return the bytes that each writing thread may keep in this place, at most `disk_budget_bytes`.

    All threads of `ranks` ranks together take a part of the free space. Raises OSError.
    """
    mount = mount_of(directory)
    parts = SHARE_OF_MEMORY if mount is not None and mount.is_memory else SHARE_OF_DISK
    return min(disk_budget_bytes, shutil.disk_usage(directory).free // parts // (max(ranks, 1) * THREADS_PER_RANK))


def _bases(environment: Mapping[str, str]) -> Iterator[Path]:
    """Directories of this user in places that are local, large enough and writable only by this user."""
    given = environment.get("TMPDIR")
    for place in (*([Path(given)] if given else []), SHARED_MEMORY, Path(tempfile.gettempdir()), Path("/var/tmp")):
        with suppress(OSError):
            base = place / node_directory().name
            if not place.is_dir() or is_on_network(place) or shutil.disk_usage(place).free < MIN_FREE_BYTES:
                continue
            if base != node_directory():
                make_directory(base, exist_ok=True)
            check_owner(base)
            yield base


def _is_made(place: Path) -> bool:
    """Create a place, and return whether it is this user's: others may have made it since the choice.

    Only this user can write to its parent, so its own mode, which $TRAINCOPE_UMASK gives, does not matter.
    """
    try:
        make_directory(place.parent, exist_ok=True)
        check_owner(place.parent)
        make_directory(place, exist_ok=True)
        status = place.lstat()
    except OSError as error:
        logger.warning("records do not go to %s: %s", place, error)
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _claim(pointer: Path, target: Path, *, named: Path) -> None:
    """Write the pointer, unless another rank has done so."""
    if any(character in f"{target}{named}" for character in LINE_BREAKS):
        raise OSError(f"{named} has a line break in its name")
    write_whole(pointer, f"{target}\n{named}\n".encode(), only_new=True, mode=0o600)


def _pointer(named: Path) -> Path:
    digest = blake2b(os.fsencode(named.absolute()), digest_size=8).hexdigest()
    return node_directory() / f"records-{digest}{POINTER}"


def _target(pointer: Path) -> Path | None:
    lines = _lines(pointer)
    return Path(lines[0]) if lines else None


def _named(pointer: Path) -> Path | None:
    lines = _lines(pointer)
    return Path(lines[1]) if lines else None


def _lines(pointer: Path) -> list[str]:
    """Both lines of a pointer. Empty if it does not exist, or if others may have written it."""
    try:
        check_owner(pointer.parent)
        lines = read_regular(pointer).decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return lines if len(lines) == 2 and all(line.startswith("/") for line in lines) else []
