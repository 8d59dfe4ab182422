"""The side files of a rank: JSON, whole or in numbered lines, whatever a kill or a full disk left of them."""

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from traincope.errors import RunDirectoryError
from traincope.topology import Group

MOST_NAMES = 1 << 20
"""A number above is damage: nobody wrote that many."""


def read_numbered(path: Path, *, version: int) -> dict[int, Any]:
    """Number -> value of each whole line; a line that cannot be read is left out.

    In version 1 a line's number was its place, and the first damaged line ended them.
    """
    if version == 1:
        return dict(enumerate(_unnumbered(path)))
    return dict(line for line in map(_numbered, _lines(path)) if line is not None)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file is. Raises RunDirectoryError where it is none."""
    try:
        raw = _loads(path.read_text())
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path} is missing; the recording of it ended before it began") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise RunDirectoryError(f"{path} holds no JSON object")
    return raw


def parse(text: str) -> Any:
    """The JSON value, or None where it is none."""
    try:
        return _loads(text)
    except (ValueError, RecursionError):
        return None


def _loads(text: str) -> Any:
    """A number that is none (NaN, Infinity, 1e999) is missing."""
    return json.loads(text, parse_float=_finite, parse_constant=lambda _: None)


def _finite(text: str) -> float | None:
    value = float(text)
    return value if isfinite(value) else None


def dense_names(values: Mapping[int, Any]) -> tuple[str, ...]:
    """Names by number, with a stand-in for each that was lost."""
    count = max(values, default=-1) + 1
    return tuple(str(values.get(number, unknown_name(number))) for number in range(count))


def unknown_name(number: int) -> str:
    return f"<name {number}>"


def dense_groups(values: Mapping[int, Any]) -> tuple[Group, ...]:
    """Groups by number; a garbled or lost one keeps its place, for records name groups by it."""
    count = max(values, default=-1) + 1
    return tuple(_group(number, values.get(number)) for number in range(count))


def _group(number: int, raw: Any) -> Group:
    fields = raw if isinstance(raw, dict) else {}
    ranks = fields.get("ranks")
    whole = isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks)
    return Group(
        number=number,
        key=str(fields.get("key", f"<group {number}>")),
        axis=str(fields.get("axis", "unknown")),
        rule=str(fields.get("rule", "none")),
        ranks=tuple(ranks) if whole and isinstance(ranks, list) else (),
    )


def _numbered(line: str) -> tuple[int, Any] | None:
    pair = parse(line)
    if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
        return None
    return (pair[0], pair[1]) if 0 <= pair[0] < MOST_NAMES else None


def _unnumbered(path: Path) -> Iterator[Any]:
    for line in _lines(path):
        try:
            yield json.loads(line)
        except ValueError:
            return


def _lines(path: Path) -> Iterator[str]:
    """Of the whole file: the last one may have been cut by a kill."""
    try:
        yield from path.read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return
