"""Brings the files of a checkpoint to the ranks that need them: checked in their folder, or copied from the bucket.

A file has the same checksum in both tiers, so each can come from either. Ranks that share a folder share the work, and
get only the files that one of them needs.
"""

import logging
import pickle
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from traincope.engine.checkpoint.manifest import (
    Damaged,
    Manifest,
    Missing,
    Unreadable,
    check_file,
    read_manifest,
)
from traincope.engine.checkpoint.places import directory as folder
from traincope.engine.checkpoint.places.bucket import Bucket
from traincope.engine.checkpoint.places.claim import Claim
from traincope.engine.checkpoint.places.tiers import Candidate, Torn, in_bucket, in_folder, ordered
from traincope.engine.checkpoint.writer import METADATA
from traincope.engine.ranks.together import Together
from traincope.errors import CheckpointError

logger = logging.getLogger(__name__)


def find_leader(directory: Path, ranks: Together) -> int:
    """The lowest rank that shares this rank's folder. Creates the folder. Raises CheckpointError on all ranks."""
    name = ranks.first(f"{folder.MARK}{uuid4().hex[:8]}")
    mark = ranks.do(lambda: folder.mark(directory, f"{name}-{ranks.rank}"))

    def lowest() -> int:
        with folder.writing(directory):
            seen = (rank for rank in range(ranks.size) if (directory / f"{name}-{rank}").exists())
            return next(seen, ranks.rank)

    leader = ranks.do(lowest)
    mark.unlink(missing_ok=True)
    return leader


class Restoring:
    """Finds and fetches checkpoints. All ranks call each method together."""

    def __init__(self, directory: Path, bucket: Bucket | None, *, claim: Claim, ranks: Together, leader: int) -> None:
        self._directory, self._bucket, self._claim = directory, bucket, claim
        self._ranks, self._leader = ranks, leader
        self._remote: list[Candidate] = []

    def candidates(self, *, restarted: bool) -> list[Candidate]:
        """Checkpoints of all folders and of the bucket, newest first.

        Raises CheckpointError if the bucket does not answer. A restarted training with a checkpoint in a folder
        continues without it.
        """
        local = [candidate for of_rank in self._ranks.all(self._ranks.do(self._in_folder)) for candidate in of_rank]
        listed = self._ranks.do(lambda: self._in_bucket(optional=restarted and bool(local)))
        self._remote = self._ranks.first(listed)
        return ordered(local + self._remote)

    def metadata(self, candidate: Candidate, manifest: Manifest) -> Any:
        """torch's index of the shards, the same on all ranks. Without a whole copy: its Damaged."""
        content, damage = self._ranks.do(lambda: self._read_metadata(candidate, manifest))
        damages = self._ranks.all(damage)
        if all(damages):
            return _worst(each for each in damages if each is not None)
        return pickle.loads(self._ranks.first(content, source=damages.index(None)))

    def obtain(self, candidate: Candidate, manifest: Manifest, *, needed: set[str]) -> Damaged | None:
        """Make the files that this rank needs whole in its folder. Returns the damage of one that is whole nowhere."""
        path = folder.complete_path(self._directory, step=manifest.step)
        here, share = _is_copy(path, manifest), self._share({METADATA, *needed})
        damages = {name: damage for name in share if (damage := _damage(path, name, manifest, here=here)) is not None}
        by_leader: dict[int, list[Damaged]] = {}
        for leader, found in self._ranks.all((self._leader, list(damages.values()))):
            by_leader.setdefault(leader, []).extend(found)
        worst, own = _worst(each for found in by_leader.values() for each in found), _worst(by_leader[self._leader])
        if worst is None or candidate.remote is None or isinstance(worst, Unreadable):
            return worst
        whole = [name for name in share if name not in damages] if own is not None else []
        fetched = self._fetch(candidate.remote, manifest, whole=whole, absent=list(damages), damage=own)
        ordinary = isinstance(own, Missing) and len(by_leader) > 1  # each folder has only the files of its ranks
        if fetched is None and self._is_leader and own is not None and here and not ordinary:
            logger.warning("checkpoint damaged: %s; fetched it from the bucket (checkpoint.upload)", own)
        return fetched

    def report(self, reasons: Sequence[tuple[Candidate, Damaged]], *, loaded: Candidate | None) -> None:
        """Warn of each newer checkpoint that could not be loaded, and rename it. Rank 0 warns."""
        renamed = self._ranks.do(lambda: self._set_aside(loaded))
        names = {place: name for of_rank in self._ranks.all(renamed) for place, name in of_rank.items()}
        instead = "the training begins anew" if loaded is None else f"loaded {loaded.place} instead"
        for candidate, reason in reasons if self._ranks.rank == 0 else ():
            if isinstance(reason, Torn):
                logger.warning("checkpoint not complete: %s; %s", reason, instead)
            else:
                logger.warning(
                    "checkpoint damaged: %s; %s, and renamed it to %s", reason, instead, names[candidate.place]
                )

    @property
    def _is_leader(self) -> bool:
        return self._ranks.rank == self._leader

    def _in_folder(self) -> list[Candidate]:
        """A leader's view."""
        with folder.writing(self._directory):
            return in_folder(self._directory) if self._is_leader else []

    def _in_bucket(self, *, optional: bool) -> list[Candidate]:
        """Rank 0's view."""
        if self._bucket is None or self._ranks.rank != 0:
            return []
        try:
            return in_bucket(self._bucket)
        except CheckpointError as error:
            if not optional:
                raise
            logger.warning("%s; the restart uses the checkpoints in %s alone", error, self._directory)
            return []

    def _read_metadata(self, candidate: Candidate, manifest: Manifest) -> tuple[bytes, Damaged | None]:
        """A leader's copy, or rank 0's from the bucket."""
        path, saved = folder.complete_path(self._directory, step=manifest.step), manifest.files[METADATA]
        damage: Damaged | None = Missing(f"{path / METADATA} is missing")
        if self._is_leader:
            damage = _damage(path, METADATA, manifest, here=_is_copy(path, manifest))
            if damage is None:
                with folder.writing(path):
                    return (path / METADATA).read_bytes(), None
        if self._ranks.rank == 0 and self._bucket is not None and candidate.remote is not None:
            try:
                return self._bucket.read(candidate.remote, METADATA, saved), None
            except Damaged as remote:
                damage = remote.with_traceback(None)
        return b"", damage

    def _share(self, needed: set[str]) -> list[str]:
        """The files that this rank checks and fetches for the ranks of its folder."""
        wanted = self._ranks.all((self._leader, needed))
        members = [rank for rank, (leader, _) in enumerate(wanted) if leader == self._leader]
        names = sorted({name for rank in members for name in wanted[rank][1]})
        return names[members.index(self._ranks.rank) :: len(members)]

    def _fetch(
        self, remote: str, manifest: Manifest, *, whole: Sequence[str], absent: Sequence[str], damage: Damaged | None
    ) -> Damaged | None:
        """Put a new copy together in each folder that has damage: files that are whole, and those of the bucket."""
        new = folder.new_path(self._claim.folder, step=manifest.step)
        path = folder.complete_path(self._directory, step=manifest.step)
        leads = self._is_leader and damage is not None

        def prepare() -> None:
            if leads:
                with folder.writing(self._directory):
                    folder.prepare(new)

        def fill() -> Damaged | None:
            with folder.writing(self._directory):
                for name in whole:
                    shutil.copyfile(path / name, new / name)
                    folder.sync_file(new / name)
            try:
                if self._bucket is not None:
                    self._bucket.fetch(remote, absent, manifest=manifest, to=new)
            except Damaged as found:
                return found.with_traceback(None)
            return None

        def complete() -> None:
            if leads:
                with folder.writing(self._directory):
                    if path.exists() and not isinstance(damage, Missing):
                        folder.set_aside(path, self._claim.folder)
                    folder.complete(new, manifest)

        try:
            self._ranks.do(prepare)
            failure = _worst(each for each in self._ranks.all(self._ranks.do(fill)) if each is not None)
            if failure is None:
                self._ranks.do(complete)
            return failure
        finally:
            if leads:
                with suppress(OSError):
                    folder.remove_left_overs(self._claim.folder)

    def _set_aside(self, loaded: Candidate | None) -> Mapping[str, str]:
        """Rename all checkpoints that are newer than the loaded one. Returns their places with their new names."""
        renamed: dict[str, str] = {}
        if loaded is None:
            return renamed
        if self._is_leader:
            with folder.writing(self._directory):
                for path in folder.complete_checkpoints(self._directory):
                    if folder.step_of(path) > loaded.step:
                        renamed[str(path)] = str(folder.set_aside(path, self._claim.folder))
        if self._ranks.rank == 0 and self._bucket is not None:
            for candidate in self._remote:
                if candidate.step > loaded.step and candidate.remote and not isinstance(candidate.damage, Torn):
                    renamed.setdefault(candidate.place, self._bucket.set_aside(candidate.remote))
        return renamed


def _is_copy(path: Path, manifest: Manifest) -> bool:
    """True if a folder has this checkpoint, and not another one of the same step."""
    try:
        return read_manifest(path).digest == manifest.digest
    except Damaged:
        return False


def _damage(path: Path, name: str, manifest: Manifest, *, here: bool) -> Damaged | None:
    try:
        if not here:
            raise Missing(f"{path / name} is missing")
        check_file(path, name, manifest.files[name], whole=True)
    except Damaged as damage:
        return damage.with_traceback(None)
    return None


def _worst(damages: Iterable[Damaged]) -> Damaged | None:
    """Return the worst: unreadable before damaged, and damaged before missing."""
    order = (Unreadable, Damaged, Missing)
    return min(damages, key=lambda damage: order.index(type(damage)), default=None)
