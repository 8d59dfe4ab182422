"""Check the place where runs are written: writable, local, large enough."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from traincope.doctor.finding import Finding, State, bad, note, ok
from traincope.record.segments.writer import CAPACITY, SEGMENT_BYTES
from traincope.record.session.options import DEFAULT_DISK_BUDGET, OUT_VARIABLE
from traincope.store.places.mounts import MOUNTS, mount_of
from traincope.store.places.node_local import local_base, local_runs
from traincope.store.places.ship_notes import left_notes
from traincope.store.segments.segments import SegmentFile
from traincope.units import size

MIN_FREE_BYTES = 16 * SEGMENT_BYTES

ELSEWHERE = f"choose another directory: traincope.run(out=...) or {OUT_VARIABLE}=DIR"


def examine_disk(out: Path) -> tuple[Finding, ...]:
    """Check the directory `out`, an absolute path; neither it nor its parents need exist. No file remains there."""
    parent = next(place for place in (out, *out.parents) if place.exists())
    written = _writable(out, parent)
    if written[0].state is State.BAD:
        return written
    return (*written, _filesystem(parent), _space(parent), *_left_runs())


def _left_runs() -> Iterator[Finding]:
    """Records of this node that have not arrived where they belong."""
    for local in local_runs():
        left = [shipped for shipped in left_notes(local.directory) if not shipped.complete]
        if left:
            num_bytes = sum(shipped.left_bytes for shipped in left)
            yield note(
                "not shipped",
                f"{size(num_bytes)} of {local.named} in {local.directory}",
                do=f"if its training has ended, run traincope ship {local.named}",
            )


def _writable(out: Path, parent: Path) -> tuple[Finding, ...]:
    creation = "" if parent == out else "; it will be created"
    if not parent.is_dir():
        return (bad("directory", f"{out} cannot be created: {parent} is a file", do=ELSEWHERE),)
    try:
        with tempfile.TemporaryDirectory(prefix=".traincope-doctor-", dir=parent) as directory:
            place = Path(directory)
            return ok("directory", f"{out}{creation}"), _reserved(place)
    except OSError as error:
        return (bad("directory", f"{parent} cannot be written to: {error.strerror}", do=ELSEWHERE),)


def _reserved(directory: Path) -> Finding:
    """Reserve a segment as the recorder does: its space is allocated before it is mapped."""
    try:
        SegmentFile(directory / "main-00000.seg", capacity=CAPACITY).seal(0)
    except OSError as error:
        fact = f"a segment of {size(SEGMENT_BYTES)} cannot be reserved and mapped: {error.strerror}"
        return bad("reservation", fact, do=ELSEWHERE)
    return ok("reservation", f"a segment of {size(SEGMENT_BYTES)} was reserved and mapped (posix_fallocate, mmap)")


def _filesystem(place: Path) -> Finding:
    mount = mount_of(place)
    if mount is None:
        return note("filesystem", f"unknown: {MOUNTS} does not contain it")
    if mount.is_remote:
        network = f"{mount.filesystem} at {mount.point}, behind a network"
        base = local_base(os.environ)
        if base is not None:
            return ok("filesystem", f"{network}: ranks record in {base}, and the agent ships the records")
        return note(
            "filesystem",
            f"{network}, and no local place has room: writing a record may wait for the network",
            do="set TMPDIR to a local disk of the node, if it has one",
        )
    return ok("filesystem", f"{mount.filesystem} at {mount.point}, local")


def _space(place: Path) -> Finding:
    numbers = os.statvfs(place)
    free = numbers.f_bavail * numbers.f_frsize
    if free < MIN_FREE_BYTES:
        return bad("space", f"{size(free)} free; records would be dropped", do=f"free disk space, or {ELSEWHERE}")
    if free < DEFAULT_DISK_BUDGET:
        return note(
            "space",
            f"{size(free)} free; one thread may write up to {size(DEFAULT_DISK_BUDGET)}",
            do="free disk space, or set a smaller traincope.run(disk_budget=...)",
        )
    return ok("space", f"{size(free)} free; one thread writes at most {size(DEFAULT_DISK_BUDGET)}")
