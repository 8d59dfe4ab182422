"""Redacted copies of a run directory, to share with others: all numbers stay, all of your names are replaced.

A name becomes a keyed hash, and the key is thrown away: equal names stay equal within one copy, and cannot be guessed.
Names that traincope and torch define (`words.py`) stay, because the analyses need them. Types of exceptions, devices
and package versions stay too. The copy contains only the parts of each file that the format defines; unreadable parts
are left out.
"""

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from signal import Signals
from typing import Any

import numpy as np

from traincope.errors import RunDirectoryError, UnreadableError, UsageError
from traincope.events import FORMAT_VERSION, RECORD_BYTES, Kind
from traincope.store import words
from traincope.store.job.launcher import append_notes, notes_path, read_notes
from traincope.store.job.looks import append_look, read_looks
from traincope.store.job.requests import append_request, read_requests
from traincope.store.layout import (
    COMPACTED,
    DETAILS_FILE,
    FATAL_FILE,
    GROUPS_FILE,
    LEVEL_FILE,
    NAMES_FILE,
    PROVISIONAL,
    RANK_FILE,
    RUN_FILE,
    SIGNAL_FILES,
    attempt_number,
    rank_number,
    record_files,
    signal_file,
)
from traincope.store.lines import parse, read_numbered, read_object
from traincope.store.reading import entries, find_run
from traincope.store.segments.compacted import is_thinned, write_compacted
from traincope.store.segments.records import read_records
from traincope.store.segments.segments import HEADER_BYTES, SegmentRecords, recorder_events
from traincope.whole_files import written_aside

RECORDER_KINDS = (Kind.COLLECTIVE, Kind.STALL, Kind.MEMORY, Kind.FLOPS, Kind.GPU, Kind.BATCH, Kind.USAGE)
"""Kinds of records whose names come from traincope only."""

STACKS = frozenset((FATAL_FILE, *map(signal_file, Signals.__members__)))
MESSAGE = re.compile(r"(?<=: )(\w+): .*", re.DOTALL)
"""The message after the error type of an absent probe; it may contain a path."""

RUN_NUMBERS = ("version", "world_size", "started_wall_ns")
RANK_NUMBERS = ("version", "rank", "world_size", "pid", "level", "started_wall_ns", "ended_wall_ns", "with_process")

Hash = Callable[[str], str]


def redact(run: Path, target: Path) -> None:
    """Copy a run directory to `target`, which must not exist.

    The copy appears when it is complete. Raises RunDirectoryError if the run cannot be read, UsageError if the copy
    cannot be written.
    """
    root = find_run(run)
    if target.exists():
        raise UsageError(f"{target} already exists; give another path with -o")
    if read_object(root / RUN_FILE).get("imported"):
        raise UsageError(
            f"{root} was imported: it holds only names of kernels, operations or causes, so nothing would remain"
        )
    hashed = _hash()
    try:
        with written_aside(target) as copy:
            _copy(root, copy, hashed, name=target.name)
    except OSError as error:
        if error.filename is not None and Path(os.fsdecode(error.filename)).is_relative_to(root):
            raise UnreadableError.of(root, error) from error
        raise UsageError(f"cannot write the copy to {target}: {error.strerror or error}") from error


def _hash() -> Hash:
    key = secrets.token_bytes(16)
    return lambda text: f"name-{blake2b(text.encode(errors='replace'), key=key, digest_size=6).hexdigest()}"


def _copy(root: Path, target: Path, hashed: Hash, *, name: str) -> None:
    target.mkdir(parents=True)
    _rewrite(root / RUN_FILE, target / RUN_FILE, lambda manifest: _run(manifest, hashed, name=name))
    append_notes(notes_path(target), read_notes(notes_path(root)))
    level = root / LEVEL_FILE
    if level.is_file() and level.read_text(errors="replace").strip().isdecimal():
        shutil.copyfile(level, target / LEVEL_FILE)
    for request in read_requests(root):
        append_request(target, request)
    attempts = [path for path in entries(root, "attempt-") if attempt_number(path) is not None]
    for rank in (rank for attempt in attempts for rank in entries(attempt, "rank-") if rank_number(rank) is not None):
        _copy_rank(rank, target / rank.relative_to(root), hashed)
    for number, rank in enumerate(entries(root, PROVISIONAL)):
        _copy_rank(rank, target / f"{PROVISIONAL}{number}", hashed)


def _copy_rank(rank: Path, target: Path, hashed: Hash) -> None:
    target.mkdir(parents=True)
    version = FORMAT_VERSION
    if (rank / RANK_FILE).is_file():
        _rewrite(rank / RANK_FILE, target / RANK_FILE, lambda manifest: _rank(manifest, hashed))
        version = parse((target / RANK_FILE).read_text()).get("version", FORMAT_VERSION)
    names = {n: str(name) for n, name in read_numbered(rank / NAMES_FILE, version=version).items()}
    segments = _copy_segments(rank, target)
    clear = _recorder_names(segments) | {n for n, name in names.items() if words.is_known_name(name)}
    _write_lines(target / NAMES_FILE, {n: name if n in clear else hashed(name) for n, name in names.items()}, version)
    groups = read_numbered(rank / GROUPS_FILE, version=version)
    _write_lines(target / GROUPS_FILE, {n: _group(group, hashed) for n, group in groups.items()}, version)
    recorder_details = _recorder_details(segments, names)
    details = read_numbered(rank / DETAILS_FILE, version=version)
    shown = {
        n: _details(value, hashed) if n in recorder_details else _values(value, hashed) for n, value in details.items()
    }
    _write_lines(target / DETAILS_FILE, shown, version)
    for stacks in rank.glob(SIGNAL_FILES):
        if stacks.stat().st_size and stacks.name in STACKS:
            (target / stacks.name).write_text("(stacks left out)\n")
    for look in read_looks(rank):
        append_look(target, replace(look, stack="", no_stack=""))


def _copy_segments(rank: Path, target: Path) -> list[SegmentRecords]:
    """Copy the segments that can be read; they contain only numbers. Room that a killed rank reserved is left out."""
    copied = []
    for path in record_files(rank):
        try:
            segment = read_records(path)
        except UnreadableError:
            raise
        except RunDirectoryError:
            continue
        if segment.thread == "main" or segment.thread.removeprefix("thread-").isdecimal():
            if path.suffix == COMPACTED:
                write_compacted(target, segment, thinned=is_thinned(path))
            else:
                copy = shutil.copyfile(path, target / path.name)
                if not (segment.lost_bytes or segment.garbled):
                    os.truncate(copy, HEADER_BYTES + len(segment.records) * RECORD_BYTES)
            copied.append(segment)
    return copied


def _recorder_names(segments: list[SegmentRecords]) -> set[int]:
    """Numbers of the names in records of RECORDER_KINDS."""
    records = (segment.records for segment in segments)
    return {
        number
        for array in records
        for number in np.unique(array["name"][np.isin(array["kind"], RECORDER_KINDS)]).tolist()
    }


def _recorder_details(segments: list[SegmentRecords], names: dict[int, str]) -> set[int]:
    """Numbers of the details of the recorder's own events. A user's event may have the same name."""
    numbers = set()
    for segment in segments:
        events = recorder_events(segment.records)
        is_recorder = [names.get(int(number)) in words.EVENTS for number in events["name"]]
        numbers.update(events["group"][np.array(is_recorder, dtype=bool)].tolist())
    return numbers


def _run(manifest: dict[str, Any], hashed: Hash, *, name: str) -> dict[str, Any]:
    """`name`: of the copy's directory, which its maker chose."""
    return {
        **_numbers(manifest, RUN_NUMBERS),
        "id": name,
        "mesh": _axes(manifest.get("mesh"), hashed),
        "versions": manifest.get("versions"),
        "command": hashed(str(manifest.get("command"))),
        "environment": {},
        "git_revision": None,
        "settings": _values(manifest.get("settings"), hashed, known=words.SETTINGS | words.TEXTS),
    }


def _rank(manifest: dict[str, Any], hashed: Hash) -> dict[str, Any]:
    return {
        **_numbers(manifest, RANK_NUMBERS),
        "host": hashed(str(manifest.get("host"))),
        "boot_id": hashed(str(manifest.get("boot_id"))),
        "coords": _axes(manifest.get("coords"), hashed),
        "device": {
            name: hashed(str(value)) if name == "slot" else value
            for name, value in _items(manifest.get("device"))
            if name != "uuid"
        },
        "links": {
            hashed(name): _values(link, hashed, known=words.LINKS) for name, link in _items(manifest.get("links"))
        },
        "cpu_limits": _values(manifest.get("cpu_limits"), hashed, known=words.CPU_LIMITS),
        "ending": manifest.get("ending"),
        "issued_collectives": {
            hashed(str(name)): count for name, count in _items(manifest.get("issued_collectives")) if type(count) is int
        },
        "probes": {name: MESSAGE.sub(r"\1", str(state)) for name, state in _items(manifest.get("probes"))},
        "recorder": {name: count for name, count in _items(manifest.get("recorder")) if type(count) is int},
    }


def _group(group: Any, hashed: Hash) -> Any:
    if not isinstance(group, dict):
        return None
    axis, ranks = str(group.get("axis")), group.get("ranks")
    valid = isinstance(ranks, list) and all(type(rank) is int for rank in ranks)
    return {
        "key": hashed(str(group.get("key"))),
        "axis": _axis(axis, hashed),
        "rule": group.get("rule"),
        "ranks": ranks if valid else None,
    }


def _axes(sizes: Any, hashed: Hash) -> dict[str, int]:
    return {_axis(axis, hashed): size for axis, size in _items(sizes) if type(size) is int}


def _axis(axis: str, hashed: Hash) -> str:
    return axis if words.is_known_axis(axis) else hashed(axis)


def _details(details: Any, hashed: Hash) -> Any:
    """Redact details of one of the recorder's own events. An exception's message and traceback are left out, and those
    of the exceptions behind it, and of other ranks.
    """
    kept = ((key, value) for key, value in _items(details) if not key.endswith(("message", "traceback")))
    return {key: _detail(key, value, hashed) for key, value in kept}


def _detail(key: str, value: Any, hashed: Hash) -> Any:
    if key in ("chain", "failures") and isinstance(value, list):
        return [_details(each, hashed) for each in value]
    return value if key in words.DETAILS else _values(value, hashed)


def _values(value: Any, hashed: Hash, *, known: frozenset[str] = frozenset()) -> Any:
    """Keep structure and numbers; keep only known keys and texts."""
    if isinstance(value, dict):
        return {_word(key, hashed, known): _values(inner, hashed, known=known) for key, inner in value.items()}
    if isinstance(value, list):
        return [_values(inner, hashed, known=known) for inner in value]
    return _word(value, hashed, known) if isinstance(value, str) else value


def _word(text: str, hashed: Hash, known: frozenset[str]) -> str:
    return text if text in known else hashed(text)


def _numbers(manifest: dict[str, Any], keys: tuple[str, ...]) -> dict[str, int]:
    return {key: manifest[key] for key in keys if isinstance(manifest.get(key), int)}


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    """Items of an object; empty for other values."""
    return value.items() if isinstance(value, dict) else ()


def _write_lines(path: Path, values: Mapping[int, Any], version: int) -> None:
    numbered = version > 1
    lines = (json.dumps([number, value] if numbered else value) for number, value in sorted(values.items()))
    path.write_text("".join(f"{line}\n" for line in lines))


def _rewrite(source: Path, target: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    manifest = parse(source.read_text(errors="replace"))
    if not isinstance(manifest, dict):
        raise RunDirectoryError(
            f"{source} does not hold a JSON object, so its names cannot be redacted; remove the file"
        )
    target.write_text(json.dumps(change(manifest), indent=1) + "\n")
