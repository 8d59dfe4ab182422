"""A copy of a run directory that may be shown to strangers: every number stays, every name of yours goes.

A name becomes a keyed hash whose key is thrown away: alike names stay alike within one copy, and
cannot be guessed from it. What traincope and torch name by themselves (`words.py`) stays, for the
analyses read it; so do the types of exceptions, devices and versions of packages. Of each file
only what the format knows is written anew, and what cannot be read is left out.
"""

import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from signal import Signals
from typing import Any

import numpy as np

from traincope.errors import RunDirectoryError, UsageError
from traincope.events import FORMAT_VERSION, Kind
from traincope.store import words
from traincope.store.compacted import is_thinned, write_compacted
from traincope.store.launcher import append_notes, notes_of, read_notes
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
    attempt_number,
    rank_number,
    records_of,
    signal_file,
)
from traincope.store.lines import parse, read_numbered, read_object
from traincope.store.reading import find_run
from traincope.store.records import read_records
from traincope.store.segments import SegmentRecords, own_events

OURS = (Kind.COLLECTIVE, Kind.STALL, Kind.MEMORY, Kind.FLOPS, Kind.GPU)
"""Kinds whose names only traincope gives."""

STACKS = frozenset((FATAL_FILE, *map(signal_file, Signals.__members__)))
MESSAGE = re.compile(r"(?<=: )(\w+): .*", re.DOTALL)
"""After the type of the error that keeps a probe away: it may hold a path."""

RUN_NUMBERS = ("version", "world_size", "started_wall_ns")
RANK_NUMBERS = ("version", "rank", "world_size", "pid", "started_wall_ns", "ended_wall_ns", "with_process")

Hash = Callable[[str], str]


def redact(run: Path, target: Path) -> None:
    """Copy a run directory to `target`, which must not exist.

    Raises RunDirectoryError where it cannot be read, UsageError where the copy cannot be made.
    """
    root = find_run(run)
    if target.exists():
        raise UsageError(f"{target} is there already; give another place with -o")
    if read_object(root / RUN_FILE).get("imported"):
        raise UsageError(f"{root} was imported: names of kernels are all it holds, and nothing would be left of it")
    hashed = _hash()
    try:
        _copy(root, target, hashed)
    except OSError as error:
        raise UsageError(f"cannot write the copy to {target}: {error}") from error


def _hash() -> Hash:
    key = secrets.token_bytes(16)
    return lambda text: f"name-{blake2b(text.encode(errors='replace'), key=key, digest_size=6).hexdigest()}"


def _copy(root: Path, target: Path, hashed: Hash) -> None:
    target.mkdir(parents=True)
    _rewrite(root / RUN_FILE, target / RUN_FILE, lambda card: _run(card, hashed))
    append_notes(notes_of(target), read_notes(notes_of(root)))
    level = root / LEVEL_FILE
    if level.is_file() and level.read_text(errors="replace").strip().isdecimal():
        shutil.copyfile(level, target / LEVEL_FILE)
    for rank in sorted(root.glob("attempt-*/rank-*")):
        if attempt_number(rank.parent) is not None and rank_number(rank) is not None:
            _copy_rank(rank, target / rank.relative_to(root), hashed)
    for number, rank in enumerate(sorted(root.glob(f"{PROVISIONAL}*"))):
        _copy_rank(rank, target / f"{PROVISIONAL}{number}", hashed)


def _copy_rank(rank: Path, target: Path, hashed: Hash) -> None:
    target.mkdir(parents=True)
    version = FORMAT_VERSION
    if (rank / RANK_FILE).is_file():
        _rewrite(rank / RANK_FILE, target / RANK_FILE, lambda card: _rank(card, hashed))
        version = parse((target / RANK_FILE).read_text()).get("version", FORMAT_VERSION)
    names = {n: str(name) for n, name in read_numbered(rank / NAMES_FILE, version=version).items()}
    segments = _copy_segments(rank, target)
    kept = _named_by_us(segments) | {n for n, name in names.items() if words.is_own_name(name)}
    _write_lines(target / NAMES_FILE, {n: name if n in kept else hashed(name) for n, name in names.items()}, version)
    groups = read_numbered(rank / GROUPS_FILE, version=version)
    _write_lines(target / GROUPS_FILE, {n: _group(group, hashed) for n, group in groups.items()}, version)
    ours = _details_by_us(segments, names)
    details = read_numbered(rank / DETAILS_FILE, version=version)
    shown = {n: _details(value, hashed) if n in ours else _values(value, hashed) for n, value in details.items()}
    _write_lines(target / DETAILS_FILE, shown, version)
    for stacks in rank.glob("signal-*.txt"):
        if stacks.stat().st_size and stacks.name in STACKS:
            (target / stacks.name).write_text("(stacks left out)\n")


def _copy_segments(rank: Path, target: Path) -> list[SegmentRecords]:
    """Those that can be read: they hold nothing but numbers."""
    copied = []
    for path in records_of(rank):
        try:
            segment = read_records(path)
        except RunDirectoryError:
            continue
        if segment.thread == "main" or segment.thread.removeprefix("thread-").isdecimal():
            if path.suffix == COMPACTED:
                write_compacted(target, segment, thinned=is_thinned(path))
            else:
                shutil.copyfile(path, target / path.name)
            copied.append(segment)
    return copied


def _named_by_us(segments: list[SegmentRecords]) -> set[int]:
    """Numbers of the names that records of kinds of our own carry."""
    records = (segment.records for segment in segments)
    return {number for of in records for number in np.unique(of["name"][np.isin(of["kind"], OURS)]).tolist()}


def _details_by_us(segments: list[SegmentRecords], names: dict[int, str]) -> set[int]:
    """Numbers of the details that the recorder's own events carry; a training may call one of its own the same."""
    found = set()
    for segment in segments:
        events = own_events(segment.records)
        own = [names.get(int(number)) in words.EVENTS for number in events["name"]]
        found.update(events["group"][np.array(own, dtype=bool)].tolist())
    return found


def _run(card: dict[str, Any], hashed: Hash) -> dict[str, Any]:
    return {
        **_numbers(card, RUN_NUMBERS),
        "id": hashed(str(card.get("id"))),
        "mesh": _axes(card.get("mesh"), hashed),
        "versions": card.get("versions"),
        "command": hashed(str(card.get("command"))),
        "environment": {},
        "git_revision": None,
        "settings": _values(card.get("settings"), hashed, known=words.SETTINGS | words.TEXTS),
    }


def _rank(card: dict[str, Any], hashed: Hash) -> dict[str, Any]:
    return {
        **_numbers(card, RANK_NUMBERS),
        "host": hashed(str(card.get("host"))),
        "boot_id": hashed(str(card.get("boot_id"))),
        "coords": _axes(card.get("coords"), hashed),
        "device": {name: value for name, value in _items(card.get("device")) if name != "uuid"},
        "ending": card.get("ending"),
        "probes": {name: MESSAGE.sub(r"\1", str(state)) for name, state in _items(card.get("probes"))},
        "recorder": {name: count for name, count in _items(card.get("recorder")) if type(count) is int},
    }


def _group(group: Any, hashed: Hash) -> Any:
    if not isinstance(group, dict):
        return None
    axis, ranks = str(group.get("axis")), group.get("ranks")
    whole = isinstance(ranks, list) and all(type(rank) is int for rank in ranks)
    return {
        "key": hashed(str(group.get("key"))),
        "axis": _axis(axis, hashed),
        "rule": group.get("rule"),
        "ranks": ranks if whole else None,
    }


def _axes(sizes: Any, hashed: Hash) -> dict[str, int]:
    return {_axis(axis, hashed): size for axis, size in _items(sizes) if type(size) is int}


def _axis(axis: str, hashed: Hash) -> str:
    return axis if words.is_own_axis(axis) else hashed(axis)


def _details(details: Any, hashed: Hash) -> Any:
    """Of an event of the recorder's own."""
    return {key: told if key in words.DETAILS else _values(told, hashed) for key, told in _items(details)}


def _values(value: Any, hashed: Hash, *, known: frozenset[str] = frozenset()) -> Any:
    """The same shape and numbers; of keys and texts only those that are known."""
    if isinstance(value, dict):
        return {_word(key, hashed, known): _values(inner, hashed, known=known) for key, inner in value.items()}
    if isinstance(value, list):
        return [_values(inner, hashed, known=known) for inner in value]
    return _word(value, hashed, known) if isinstance(value, str) else value


def _word(text: str, hashed: Hash, known: frozenset[str]) -> str:
    return text if text in known else hashed(text)


def _numbers(card: dict[str, Any], keys: tuple[str, ...]) -> dict[str, int]:
    return {key: card[key] for key in keys if isinstance(card.get(key), int)}


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    """Of what should be an object; nothing of what is none."""
    return value.items() if isinstance(value, dict) else ()


def _write_lines(path: Path, values: Mapping[int, Any], version: int) -> None:
    numbered = version > 1
    lines = (json.dumps([number, value] if numbered else value) for number, value in sorted(values.items()))
    path.write_text("".join(f"{line}\n" for line in lines))


def _rewrite(source: Path, target: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    card = parse(source.read_text(errors="replace"))
    if not isinstance(card, dict):
        raise RunDirectoryError(f"{source} holds no JSON object; it cannot be copied without its names")
    target.write_text(json.dumps(change(card), indent=1) + "\n")
