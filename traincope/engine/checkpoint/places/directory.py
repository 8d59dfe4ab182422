"""The folder of a training's checkpoints.

step-00000100       complete: it was renamed to this name after all its files were on the disk
damaged-00000100    newer than the one that was loaded, and damaged; it stays
claim-00000003      the claim of the attempt that may change the others (`claim`), with what it writes and removes
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traincope.engine.checkpoint.manifest import MANIFEST, Manifest
from traincope.engine.config import CheckpointConfig
from traincope.errors import CheckpointError, ConfigError, UsageError

IN_RUN = "checkpoints"
"""Name of the folder in a run directory."""

_COMPLETE = re.compile(r"step-(\d{8,})")
_LEFT = re.compile(r"(new|old)-\d{8,}")
MARK = ".shared-"
"""Prefix of files by which ranks see that they share the folder."""


def checkpoint_directory(config: CheckpointConfig, *, run: Path | None) -> Path:
    """The folder that the configuration names, or the one in the run directory. Raises ConfigError without both."""
    if config.directory is not None:
        return Path(config.directory)
    if run is None:
        raise ConfigError("checkpoint.directory is not set, and no run directory is given; set it, or give --out")
    return run / IN_RUN


def complete_checkpoints(directory: Path) -> list[Path]:
    """Committed checkpoints, newest first. Later damage is not looked for."""
    try:
        entries = [path for path in directory.iterdir() if _COMPLETE.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(entries, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.partition("-")[2])


def new_path(claim: Path, *, step: int) -> Path:
    """Path in the claim's folder under which the checkpoint of a step is written."""
    return claim / f"new-{step:08d}"


def complete_path(directory: Path, *, step: int) -> Path:
    """Path of the complete checkpoint of a step."""
    return directory / f"step-{step:08d}"


def prepare(new: Path) -> None:
    """Make room for a new checkpoint: an empty folder, without what failed saves have left. Raises OSError.

    Other ranks may create the same folder at the same time, so it is emptied and never removed.
    """
    claim = new.parent
    _sync(claim.parent.parent)
    remove_left_overs(claim, keep=new)
    new.mkdir(exist_ok=True)
    for file in new.iterdir():
        file.unlink()


def remove_left_overs(claim: Path, *, keep: Path | None = None) -> None:
    """Remove what is not complete from a claim's folder, except for `keep`. No checkpoint may be in the making."""
    for path in claim.glob("*"):
        if _LEFT.fullmatch(path.name) and path.is_dir() and path != keep:
            shutil.rmtree(path)


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Turn the block's OSErrors into a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise not_writable(directory, error) from error


def not_writable(directory: Path, error: OSError) -> CheckpointError:
    """The error of a folder that cannot be written."""
    return CheckpointError(f"{directory} cannot be written ({error.strerror}); give another checkpoint.directory")


def mark(directory: Path, name: str) -> Path:
    """Create the folder, and an empty file by which other processes see that they share it. Raises CheckpointError."""
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    return directory / name


def check_unused(directory: Path) -> None:
    """Raise UsageError if the folder has checkpoints, which a new training would mix with its own."""
    entries = [path for path in directory.glob("*-*") if path.name.startswith(("step-", "damaged-"))]
    if entries:
        raise UsageError(
            f"{directory} holds checkpoints of a training; continue it with --resume, or give another "
            "checkpoint.directory"
        )


def commit(new: Path, manifest: Manifest, *, keep: int, spare: int | None = None) -> None:
    """Make a written checkpoint complete, and remove all but the newest `keep` and that of step `spare`.

    A power failure at any instant leaves the old checkpoints or also the new one. Raises OSError, in particular if a
    later attempt has removed the claim: each rename leaves its folder, or enters it.
    """
    complete(new, manifest)
    claim = new.parent
    for old in complete_checkpoints(claim.parent)[keep:]:
        if step_of(old) != spare:
            _remove(old, claim)


def complete(new: Path, manifest: Manifest) -> None:
    """Make a written checkpoint complete. It replaces another one of its step. Raises OSError."""
    claim = new.parent
    path = complete_path(claim.parent, step=manifest.step)
    with (new / MANIFEST).open("xb") as file:
        file.write(manifest.content())
        file.flush()
        os.fsync(file.fileno())
    _sync(new)
    if path.exists():
        _remove(path, claim)
    new.rename(path)
    _sync(path.parent)


def set_aside(checkpoint: Path, claim: Path) -> Path:
    """Rename a damaged checkpoint, so that it is neither loaded nor counted. Returns its new path. Raises OSError."""
    number, path = 0, checkpoint.with_name(f"damaged-{step_of(checkpoint):08d}")
    while path.exists():
        number += 1
        path = checkpoint.with_name(f"damaged-{step_of(checkpoint):08d}.{number}")
    return checkpoint.rename(claim / path.name).rename(path)


def _remove(checkpoint: Path, claim: Path) -> None:
    """Remove a complete checkpoint so that a kill in between leaves no half of it under its name."""
    old = claim / f"old-{step_of(checkpoint):08d}"
    if old.exists():
        shutil.rmtree(old)
    checkpoint.rename(old)
    shutil.rmtree(old)


def sync_file(path: Path) -> None:
    """Write a file's content to the disk. Raises OSError."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Write a folder's entries to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
