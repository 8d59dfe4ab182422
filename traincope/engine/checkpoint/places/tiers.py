"""The complete checkpoints of both tiers, newest first, and whether a training may begin with them. Needs no torch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from traincope.engine.checkpoint.identity import Settings, difference
from traincope.engine.checkpoint.manifest import MANIFEST, Damaged, Manifest, check_file, read_manifest
from traincope.engine.checkpoint.places import directory as folder
from traincope.engine.checkpoint.places.bucket import Bucket, Stored
from traincope.engine.config import CheckpointConfig
from traincope.errors import CheckpointError, ConfigError, UsageError


class Torn(Damaged):
    """An upload that did not end. It never was a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A checkpoint of a step, in the folder, in the bucket, or in both."""

    step: int
    place: str
    """Path or URL, for messages."""
    manifest: Manifest | None
    damage: Damaged | None = None
    """Reason why it cannot be loaded, if that is known without its files."""
    remote: str | None = None
    """Its folder in the bucket. None: it is not there."""


def open_bucket(config: CheckpointConfig) -> Bucket | None:
    """The second tier, if the configuration has one. Raises ConfigError, and MissingDependencyError."""
    return None if config.upload is None else Bucket(config.upload)


def in_folder(directory: Path) -> list[Candidate]:
    """Complete checkpoints of the folder."""
    return [_candidate(folder.step_of(path), place=path) for path in folder.complete_checkpoints(directory)]


def in_bucket(bucket: Bucket) -> list[Candidate]:
    """Checkpoints of the bucket, with those whose upload did not end. Raises CheckpointError without an answer."""
    return [_remote(bucket, stored) for stored in bucket.stored() if not stored.set_aside]


def ordered(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Newest first; of one step those of the folder first. Copies of one checkpoint become one candidate."""
    copies: dict[tuple[int, str], Candidate] = {}
    for candidate in sorted(candidates, key=lambda each: (-each.step, each.remote is not None)):
        key = candidate.step, candidate.place if candidate.manifest is None else candidate.manifest.digest
        first = copies.setdefault(key, candidate)
        copies[key] = replace(first, remote=first.remote or (candidate.remote if candidate.damage is None else None))
    return list(copies.values())


def check_unused(directory: Path, bucket: Bucket | None) -> None:
    """Raise UsageError if a tier has checkpoints, which a new training would mix with its own."""
    folder.check_unused(directory)
    if bucket is not None and (stored := bucket.stored()):
        raise UsageError(
            f"{bucket.place(stored[0].name)} is a checkpoint of a training; continue it with --resume, or give another "
            "checkpoint.upload"
        )


def check_resumable(directory: Path, bucket: Bucket | None, wanted: Callable[[], Settings]) -> None:
    """Look at sizes, not at contents. Raises CheckpointError if there are checkpoints and none can be loaded.

    Raises ConfigError if the newest that can be loaded is of another training. `wanted` computes this training's
    identity, which reads the text.
    """
    reasons = []
    for candidate in ordered(in_folder(directory) + ([] if bucket is None else in_bucket(bucket))):
        damage = candidate.damage or _wrong_size(candidate)
        if damage is None and candidate.manifest is not None:
            check_identity(candidate, wanted())
            return
        if not isinstance(damage, Torn):
            reasons.append(str(damage))
    if reasons:
        raise none_left(directory, bucket, reasons)


def check_identity(candidate: Candidate, wanted: Settings) -> None:
    """Raise ConfigError if a checkpoint is of another training."""
    differs = None if candidate.manifest is None else difference(candidate.manifest.identity, wanted)
    if differs is not None:
        raise ConfigError(
            f"{candidate.place} is of another training: {differs}; resume with its configuration, or give another "
            f"checkpoint.{'upload' if '://' in candidate.place else 'directory'}"
        )


def none_left(directory: Path, bucket: Bucket | None, reasons: list[str]) -> CheckpointError:
    """The error if no checkpoint can be loaded, with what is wrong with each."""
    places = str(directory) if bucket is None else f"{directory} or {bucket.url}"
    return CheckpointError(
        f"no checkpoint in {places} can be loaded: {'; '.join(reasons)}; restore the files from a copy, or start "
        "anew in another directory"
    )


def _candidate(step: int, *, place: Path) -> Candidate:
    try:
        return Candidate(step=step, place=str(place), manifest=read_manifest(place))
    except Damaged as damage:
        return Candidate(step=step, place=str(place), manifest=None, damage=damage.with_traceback(None))


def _remote(bucket: Bucket, stored: Stored) -> Candidate:
    place, manifest = bucket.place(stored.name), None
    try:
        if MANIFEST not in stored.sizes:
            raise Torn(f"{place} has no {MANIFEST}, because its upload did not end")
        manifest = bucket.read_manifest(stored.name)
        for name, saved in manifest.files.items():
            if name not in stored.sizes:
                raise Damaged(f"{place}/{name} is missing")
            if stored.sizes[name] != saved.bytes:
                raise Damaged(f"{place}/{name} has {stored.sizes[name]} bytes instead of {saved.bytes}")
    except Damaged as damage:
        found = damage.with_traceback(None)
        return Candidate(step=stored.step, place=place, manifest=manifest, damage=found, remote=stored.name)
    return Candidate(step=stored.step, place=place, manifest=manifest, remote=stored.name)


def _wrong_size(candidate: Candidate) -> Damaged | None:
    """The first file without its size. Those of the bucket have theirs."""
    if candidate.manifest is None or candidate.remote is not None:
        return None
    try:
        for name, saved in candidate.manifest.files.items():
            check_file(Path(candidate.place), name, saved, whole=False)
    except Damaged as damage:
        return damage
    return None
