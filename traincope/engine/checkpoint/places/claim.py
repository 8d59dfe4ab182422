"""The right to change a folder of checkpoints. One attempt of one training has it at a time.

claim-00000003      the attempt that has the right: the highest number
    claim.json      its process, which holds a lock on this file, and the torchrun agents that started its ranks
    new-00000150    being written
    old-00000050    being removed

Each change of the complete checkpoints is one rename out of this folder, or into it. A later attempt makes a claim with
the next number, and then removes the claims before. From then on, every rename of an earlier attempt fails, however
late it comes. The later attempt sees all that came before, because it looks for checkpoints after that. So the number
is a fencing token (Burrows, Chubby, OSDI 2006, section 2.4) that the file system itself checks. No clock decides, and
no lock, which a file server may take from a host that it does not reach.
"""

import fcntl
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from traincope.engine.checkpoint.places.directory import writing
from traincope.errors import CheckpointError
from traincope.store.job.process import Process

logger = logging.getLogger(__name__)

CLAIM_FILE = "claim.json"
_CLAIM = re.compile(r"claim-(\d{8,})")
_ASIDE = ".claim-"
"""Prefix of claims that begin or end."""
_TRIES = 100


class TakenOver(CheckpointError):
    """A later attempt has the right. One rank may find it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A rank, and the folder as it was before the rank joined the others."""

    newest: int
    """Number of the newest claim, 0 without one. An attempt that was claimed after this began is a later one."""
    agent: Process | None
    """The torchrun agent that started the rank. None: unknown, so this attempt belongs to no launch."""

    @classmethod
    def read(cls, directory: Path, *, agent: Process | None) -> "Claimant":
        """Call it before the process group exists. Raises CheckpointError if the folder cannot be read."""
        with writing(directory):
            return cls(newest=_newest(directory), agent=agent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right of this attempt, known to all its ranks."""

    folder: Path
    """Folder of the claim, in the folder of the checkpoints. It is gone once a later attempt has the right."""

    def loss(self) -> TakenOver | None:
        """Return the error that ends this attempt if a later one has the right, otherwise None."""
        directory, own = self.folder.parent, _number(self.folder)
        newest = _newest(directory)
        return _taken_over(_path(directory, newest)) if newest > own else None


def same_launch(directory: Path, agents: Collection[Process]) -> bool:
    """Return whether one of these torchrun agents also started a rank of the newest claim: this is its restart."""
    return not _Holder.read(_path(directory, _newest(directory))).agents.isdisjoint(agents)


def take(directory: Path, *, after: int, agents: Collection[Process]) -> Claim:
    """Claim the folder, which is created, and take it from the claim before. This process holds it until it ends.

    A claim of the same launch is taken also from a process that still runs, for example on a host that was cut off.
    Raises CheckpointError if a process of another launch holds the folder, if there is a claim after `after`, or if the
    folder cannot be written.
    """
    place, aside = _path(directory, after + 1), directory / f"{_ASIDE}{uuid.uuid4().hex}"
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        before = _path(directory, _newest(directory))
        if before.exists() and not same_launch(directory, agents):
            _check_not_held(before)
        aside.mkdir()
        _hold(aside / CLAIM_FILE, agents)
        if not _publish(aside, place):
            raise _taken_over(place)
        claim = Claim(folder=place)
        loss = claim.loss()
        if loss is not None:
            raise loss
        for path in directory.iterdir():
            if path != place and (_CLAIM.fullmatch(path.name) or path.name.startswith(_ASIDE)):
                _remove(path)
    return claim


def _path(directory: Path, number: int) -> Path:
    return directory / f"claim-{number:08d}"


def _number(claim: Path) -> int:
    return int(claim.name.partition("-")[2])


def _newest(directory: Path) -> int:
    try:
        return max((_number(path) for path in directory.iterdir() if _CLAIM.fullmatch(path.name)), default=0)
    except FileNotFoundError:
        return 0


def _publish(aside: Path, place: Path) -> bool:
    """Rename a whole claim to its number. False if another one has the number: a folder with files is not replaced."""
    try:
        aside.rename(place)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if place.exists():
            return False
        raise
    return True


def _remove(claim: Path) -> None:
    """Remove a claim. Ranks of it may still write there, and those on other hosts see its end some seconds later.

    Checkpoints that it was setting aside are damaged, and are removed with it.
    """
    try:
        aside = claim.rename(claim.with_name(f"{_ASIDE}{uuid.uuid4().hex}"))
    except FileNotFoundError:
        return
    for _ in range(_TRIES):
        shutil.rmtree(aside, ignore_errors=True)
        if not aside.exists():
            return
    shutil.rmtree(aside)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holder:
    """Content of the file of a claim."""

    name: str = "an unknown process"
    agents: frozenset[Process] = frozenset()

    @classmethod
    def read(cls, claim: Path) -> "_Holder":
        """Read the file of a claim. An unreadable one gives an unknown holder."""
        try:
            values = json.loads((claim / CLAIM_FILE).read_text(encoding="utf-8"))
            agents = [agent for raw in values["agents"] if (agent := Process.read(raw)) is not None]
            return cls(name=f"process {values['pid']} on host {values['host']}", agents=frozenset(agents))
        except (OSError, ValueError, KeyError, TypeError):
            return cls()


def _hold(path: Path, agents: Collection[Process]) -> None:
    """Write the file of a claim, and lock it until this process ends. The lock is of POSIX: no child inherits it."""
    values = {"host": os.uname().nodename, "pid": os.getpid(), "agents": [agent.as_json() for agent in agents]}
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(descriptor, (json.dumps(values) + "\n").encode())
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        logger.warning("%s cannot be locked, so a second training would take it over instead of being refused", path)


def _check_not_held(claim: Path) -> None:
    """Raise CheckpointError if a process holds the claim, for example of a training that still runs."""
    try:
        descriptor = os.open(claim / CLAIM_FILE, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CheckpointError(
            f"another training ({_Holder.read(claim).name}) writes checkpoints into {claim.parent}; end it first, or "
            "give another checkpoint.directory"
        ) from error
    except OSError:
        pass  # it could not be locked either
    finally:
        os.close(descriptor)


def _taken_over(by: Path) -> TakenOver:
    return TakenOver(
        f"a later attempt ({_Holder.read(by).name}) has taken over the checkpoints in {by.parent}, so this attempt "
        "cannot change them any more and ends; nothing needs to be done if that one trains"
    )
