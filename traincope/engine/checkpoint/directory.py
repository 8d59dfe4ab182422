"""The folder of a training's checkpoints.

step-00000100       complete: it was renamed to this name after all its files were on the disk
new-00000150        being written, or left by a process that was killed
old-00000050        being removed, or left by a process that was killed
damaged-00000100    newer than the one that was loaded, and damaged; never removed
"""

import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from traincope.engine.checkpoint.identity import Settings, difference
from traincope.engine.checkpoint.manifest import MANIFEST, Damaged, Manifest, check_file, read_manifest
from traincope.engine.config import CheckpointConfig
from traincope.errors import CheckpointError, ConfigError, UsageError

logger = logging.getLogger(__name__)

IN_RUN = "checkpoints"
"""Name of the folder in a run directory."""

_COMPLETE = re.compile(r"step-(\d{8,})")
_LEFT = re.compile(r"(new|old)-\d{8,}")
LOCK = ".lock"
"""File that the training which writes into the folder holds."""


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


def new_path(directory: Path, *, step: int) -> Path:
    """Path under which the checkpoint of a step is written."""
    return directory / f"new-{step:08d}"


def prepare(new: Path) -> None:
    """Make room for a new checkpoint: an empty folder, without what killed processes have left. Raises OSError.

    Other ranks may create the same folder at the same time, so it is emptied and never removed.
    """
    new.parent.mkdir(parents=True, exist_ok=True)
    _sync(new.parent.parent)
    remove_left_overs(new.parent, keep=new)
    new.mkdir(exist_ok=True)
    for file in new.iterdir():
        file.unlink()


def remove_left_overs(directory: Path, *, keep: Path | None = None) -> None:
    """Remove what is not complete, except for `keep`. No other checkpoint may be in the making."""
    for path in directory.glob("*"):
        if _LEFT.fullmatch(path.name) and path.is_dir() and path != keep:
            shutil.rmtree(path)


def hold(directory: Path) -> int:
    """Let no other process write into the folder until this one ends. Creates the folder. Returns a file descriptor.

    Raises CheckpointError if another process holds it, for example a training whose launcher was killed. The lock is
    one of POSIX: no child holds it after its parent.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise CheckpointError(
                f"another training writes checkpoints into {directory}; end it first, or give another "
                "checkpoint.directory"
            ) from error
        except OSError:
            logger.warning("%s cannot be locked, so nothing keeps a second training from writing to it", directory)
        return descriptor
    except OSError as error:
        raise CheckpointError(
            f"{directory} cannot be written ({error.strerror}); give another checkpoint.directory"
        ) from error


def check_unused(directory: Path) -> None:
    """Raise UsageError if the folder has checkpoints, which a new training would mix with its own."""
    entries = [path for path in directory.glob("*-*") if path.name.startswith(("step-", "damaged-"))]
    if entries:
        raise UsageError(
            f"{directory} holds checkpoints of a training; continue it with --resume, or give another "
            "checkpoint.directory"
        )


def commit(new: Path, manifest: Manifest, *, keep: int) -> None:
    """Make a written checkpoint complete, and remove all but the newest `keep`.

    A power failure at any instant leaves the old checkpoints or also the new one. Raises OSError.
    """
    path = new.with_name(f"step-{manifest.step:08d}")
    with (new / MANIFEST).open("xb") as file:
        file.write(manifest.content())
        file.flush()
        os.fsync(file.fileno())
    _sync(new)
    if path.exists():
        _remove(path)
    new.rename(path)
    _sync(path.parent)
    for old in complete_checkpoints(path.parent)[keep:]:
        _remove(old)


def set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint, so that it is neither loaded nor counted. Returns its new path."""
    number, path = 0, checkpoint.with_name(f"damaged-{step_of(checkpoint):08d}")
    while path.exists():
        number += 1
        path = checkpoint.with_name(f"damaged-{step_of(checkpoint):08d}.{number}")
    return checkpoint.rename(path)


def check_identity(directory: Path, wanted: Settings) -> None:
    """Raise ConfigError if the newest readable checkpoint is of another training."""
    for checkpoint, manifest in _readable(directory):
        differs = difference(manifest.identity, wanted)
        if differs is not None:
            raise ConfigError(of_another_training(checkpoint, differs))
        return


def of_another_training(checkpoint: Path, differs: str) -> str:
    """Message about a checkpoint with another identity."""
    return (
        f"{checkpoint} is of another training: {differs}; resume with its configuration, or give another "
        "checkpoint.directory"
    )


def check_sizes(directory: Path) -> None:
    """Raise CheckpointError if there are checkpoints, and a file of each is missing or has another size."""
    reasons = []
    for checkpoint in complete_checkpoints(directory):
        try:
            for name, saved in read_manifest(checkpoint).files.items():
                check_file(checkpoint, name, saved, whole=False)
        except Damaged as damage:
            reasons.append(str(damage))
        else:
            return
    if reasons:
        raise none_left(directory, reasons)


def none_left(directory: Path, reasons: list[str]) -> CheckpointError:
    """The error if no checkpoint can be loaded, with what is wrong with each."""
    return CheckpointError(
        f"no checkpoint in {directory} can be loaded: {'; '.join(reasons)}; restore the files from a copy, or start "
        "anew in another directory"
    )


def _readable(directory: Path) -> Iterator[tuple[Path, Manifest]]:
    for checkpoint in complete_checkpoints(directory):
        try:
            yield checkpoint, read_manifest(checkpoint)
        except Damaged:
            continue


def _remove(checkpoint: Path) -> None:
    """Remove a complete checkpoint so that a kill in between leaves no half of it under its name."""
    old = checkpoint.with_name(f"old-{step_of(checkpoint):08d}")
    if old.exists():
        shutil.rmtree(old)
    checkpoint.rename(old)
    shutil.rmtree(old)


def _sync(directory: Path) -> None:
    """Write a folder's entries to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
