"""A copy of a run directory that may be shown to strangers: every number stays, every name of yours goes.

A name becomes a keyed hash whose key is thrown away: alike names stay alike within one copy, and
cannot be guessed from it. What traincope itself names (operations, phases, its own events) stays, for
the analyses read it; so do the types of exceptions, mesh axes, devices and versions of packages.
"""

import json
import re
import secrets
import shutil
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from traincope.errors import RunDirectoryError, UsageError
from traincope.events import Kind
from traincope.store.layout import (
    DETAILS_FILE,
    GROUPS_FILE,
    LAUNCHER_FILE,
    LEVEL_FILE,
    NAMES_FILE,
    PROVISIONAL,
    RANK_FILE,
    RUN_FILE,
)
from traincope.store.lines import parse, read_numbered
from traincope.store.reading import find_run
from traincope.store.segments import read_segment

OURS = (Kind.COLLECTIVE, Kind.STALL, Kind.MEMORY, Kind.FLOPS)
"""Kinds whose names only traincope gives."""

OWN_NAMES = re.compile(
    r"exception|recorder level|checkpoint (saved|failed)|kernel window( left out)?|gpu [a-z ]+"
    r"|backward|gc|DataLoader|zero_grad|(async_)?(save|load) checkpoint|<other names>|[FBIW]|\w*[Ss]chedule\w*"
    r"|clip_grad_(norm|value)_|get_total_norm|clip_grads_with_norm_|loss|grad_norm"
    r"|expert_tokens\[\d+\.\d+\]|expert_padding|expert_dropped|redundant_flops"
)
"""Names of other kinds that are traincope's or torch's own."""

OWN_TEXTS = frozenset({"measured, every rank multiplying at once"})
"""Texts of settings that `traincope train` writes and a report repeats."""

KEPT_DETAILS = frozenset({"type", "handling", "why", "reasons", "meaning"})
"""Keys of events' details whose text traincope wrote, in events of its own."""

Hash = Callable[[str], str]


def redact(run: Path, target: Path) -> None:
    """Copy a run directory to `target`, which must not exist.

    Raises RunDirectoryError where it cannot be read, UsageError where the copy cannot be made.
    """
    root = find_run(run)
    if target.exists():
        raise UsageError(f"{target} is there already; give another place with -o")
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
    for plain in (LAUNCHER_FILE, LEVEL_FILE):
        if (root / plain).is_file():
            shutil.copyfile(root / plain, target / plain)
    ranks = (*root.glob("attempt-*/rank-*"), *root.glob(f"{PROVISIONAL}*"))
    for number, rank in enumerate(sorted(ranks)):
        provisional = rank.name.startswith(PROVISIONAL)
        _copy_rank(rank, target / (f"{PROVISIONAL}{number}" if provisional else rank.relative_to(root)), hashed)


def _copy_rank(rank: Path, target: Path, hashed: Hash) -> None:
    target.mkdir(parents=True)
    version = 2
    if (rank / RANK_FILE).is_file():
        card = parse((rank / RANK_FILE).read_text(errors="replace"))
        version = int(card.get("version", 2)) if isinstance(card, dict) else 2
        _rewrite(rank / RANK_FILE, target / RANK_FILE, lambda card: _rank(card, hashed))
    ours: set[int] = set()
    details_of_ours: set[int] = set()
    names = read_numbered(rank / NAMES_FILE, version=version)
    for segment in sorted(rank.glob("*.seg")):
        shutil.copyfile(segment, target / segment.name)
        _note_ours(segment, names, ours, details_of_ours)
    kept = {n: name for n, name in names.items() if n in ours or OWN_NAMES.fullmatch(str(name))}
    _write_lines(target / NAMES_FILE, {n: kept.get(n, hashed(str(name))) for n, name in names.items()}, version)
    groups = read_numbered(rank / GROUPS_FILE, version=version)
    _write_lines(target / GROUPS_FILE, {n: _group(group, hashed) for n, group in groups.items()}, version)
    details = read_numbered(rank / DETAILS_FILE, version=version)
    redacted = {n: _values(value, hashed, keep=n in details_of_ours) for n, value in details.items()}
    _write_lines(target / DETAILS_FILE, redacted, version)
    for stacks in rank.glob("signal-*.txt"):
        if stacks.stat().st_size:
            (target / stacks.name).write_text("(stacks left out)\n")


def _note_ours(segment: Path, names: dict[int, Any], ours: set[int], details: set[int]) -> None:
    """Numbers of names that only traincope gives, and of details that its own events carry."""
    try:
        records = read_segment(segment).records
    except RunDirectoryError:
        return
    ours.update(np.unique(records["name"][np.isin(records["kind"], OURS)]).tolist())
    for event in records[records["kind"] == Kind.EVENT]:
        if OWN_NAMES.fullmatch(str(names.get(int(event["name"]), "?"))):
            details.add(int(event["group"]))


def _run(card: dict[str, Any], hashed: Hash) -> dict[str, Any]:
    gone: dict[str, Any] = {"command": hashed(str(card.get("command"))), "environment": {}, "git_revision": None}
    return card | gone | {"id": hashed(str(card.get("id"))), "settings": _values(card.get("settings", {}), hashed)}


def _rank(card: dict[str, Any], hashed: Hash) -> dict[str, Any]:
    return card | {name: hashed(str(card.get(name))) for name in ("host", "boot_id")}


def _group(group: Any, hashed: Hash) -> Any:
    return group | {"key": hashed(str(group.get("key")))} if isinstance(group, dict) else None


def _values(value: Any, hashed: Hash, *, keep: bool = False, key: str = "") -> Any:
    """The same shape and numbers; of the texts only those that traincope wrote."""
    if isinstance(value, dict):
        return {name: _values(inner, hashed, keep=keep, key=name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_values(inner, hashed, keep=keep, key=key) for inner in value]
    if isinstance(value, str):
        return value if value in OWN_TEXTS or (keep and key in KEPT_DETAILS) else hashed(value)
    return value


def _write_lines(path: Path, values: dict[int, Any], version: int) -> None:
    numbered = version > 1
    lines = (json.dumps([number, value] if numbered else value) for number, value in sorted(values.items()))
    path.write_text("".join(f"{line}\n" for line in lines))


def _rewrite(source: Path, target: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    card = parse(source.read_text(errors="replace"))
    if not isinstance(card, dict):
        raise RunDirectoryError(f"{source} holds no JSON object; it cannot be copied without its names")
    target.write_text(json.dumps(change(card), indent=1) + "\n")
