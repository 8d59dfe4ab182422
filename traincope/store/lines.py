"""Side files of a rank, in JSON or numbered JSON lines. They can be read after a kill or a full disk."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from traincope.errors import RunDirectoryError, UnreadableError
from traincope.private_files import read_regular
from traincope.topology import Group

MAX_NAMES = 1 << 20
"""A larger number means a damaged line."""
KEPT_NAMES, KEPT_GROUPS = 256, 4096
"""Decoded files of names, and lines of groups, that a process keeps: ranks of a job share most of them."""


def read_names(path: Path, *, version: int) -> tuple[str, ...]:
    """Names by number, of a rank's file of names, as `dense_names`. Empty without the file."""
    return dense_names(read_numbered(path, version=version)) if version == 1 else _names(_content(path))


def read_groups(path: Path, *, version: int) -> tuple[Group, ...]:
    """Groups by number, of a rank's file of groups, as `dense_groups`. Empty without the file."""
    if version == 1:
        return dense_groups(read_numbered(path, version=version))
    groups = {group.number: group for line in _content(path).split(b"\n") if (group := _group_of(line)) is not None}
    return tuple(groups.get(number) or _group(number, None) for number in range(max(groups, default=-1) + 1))


def read_numbered(path: Path, *, version: int) -> dict[int, Any]:
    """Number -> value of each complete line. Lines that cannot be read are left out.

    In version 1 the position of a line was its number, and reading stops at the first damaged line.
    """
    return dict(enumerate(_unnumbered(path))) if version == 1 else parse_numbered(_lines(path))


def parse_numbered(lines: Iterable[str]) -> dict[int, Any]:
    """Number -> value of each line. Lines that cannot be decoded are left out."""
    return dict(line for line in map(_numbered, lines) if line is not None)


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object. Raises RunDirectoryError if it does not, UnreadableError if it may not be
    read.
    """
    try:
        text = read_regular(path).decode()
    except FileNotFoundError as error:
        raise RunDirectoryError(
            f"{path} is missing; copy it from its host, unless the process ended before it wrote the file"
        ) from error
    except OSError as error:
        raise UnreadableError.of(path, error) from error
    except ValueError as error:
        raise _damaged(path, error) from error
    return parse_object(text, place=path)


def parse_object(text: str, *, place: str | Path) -> dict[str, Any]:
    """Decode a JSON object. `place`: of its file, for the message. Raises RunDirectoryError if it is damaged."""
    try:
        raw = _loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(place, error) from error
    if not isinstance(raw, dict):
        raise RunDirectoryError(f"{place} does not hold a JSON object; restore it from a copy of the run")
    return raw


def _damaged(place: str | Path, error: Exception) -> RunDirectoryError:
    return RunDirectoryError(f"{place} cannot be read: {error}; restore it from a copy of the run")


def parse(text: str) -> Any:
    """Decode a JSON value; None if the text is invalid."""
    try:
        return _loads(text)
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if isfinite(value) else None


_loads = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _: None).decode
"""Decode JSON; non-finite numbers (NaN, Infinity, 1e999) become None."""


def dense_names(values: Mapping[int, Any]) -> tuple[str, ...]:
    """Names by number, with a placeholder for each lost name."""
    count = max(values, default=-1) + 1
    return tuple(str(values.get(number, unknown_name(number))) for number in range(count))


def unknown_name(number: int) -> str:
    return f"<name {number}>"


def dense_groups(values: Mapping[int, Any]) -> tuple[Group, ...]:
    """Groups by number. A damaged or lost group keeps its position, because records refer to groups by number."""
    count = max(values, default=-1) + 1
    return tuple(_group(number, values.get(number)) for number in range(count))


def _group(number: int, raw: Any) -> Group:
    fields = raw if isinstance(raw, dict) else {}
    ranks = fields.get("ranks")
    valid = isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks)
    return Group(
        number=number,
        key=str(fields.get("key", f"<group {number}>")),
        axis=str(fields.get("axis", "unknown")),
        rule=str(fields.get("rule", "none")),
        ranks=tuple(ranks) if valid and isinstance(ranks, list) else (),
        between_jobs=fields.get("between_jobs") is True,
        member=_whole(fields.get("member")),
        size=_whole(fields.get("size")) or 0,
    )


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _numbered(line: str) -> tuple[int, Any] | None:
    pair = parse(line)
    if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
        return None
    return (pair[0], pair[1]) if 0 <= pair[0] < MAX_NAMES else None


def _unnumbered(path: Path) -> Iterator[Any]:
    for line in _lines(path):
        try:
            yield json.loads(line)
        except ValueError:
            return


@lru_cache(maxsize=KEPT_NAMES)
def _names(content: bytes) -> tuple[str, ...]:
    return dense_names(parse_numbered(content.decode(errors="replace").split("\n")))


@lru_cache(maxsize=KEPT_GROUPS)
def _group_of(line: bytes) -> Group | None:
    """A line has all ranks of its group, and the files of all of them have the same line."""
    numbered = _numbered(line.decode(errors="replace"))
    return None if numbered is None else _group(*numbered)


def _content(path: Path) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except FileNotFoundError:
        return b""


def _lines(path: Path) -> Iterator[str]:
    """Lines of the file; a kill may have cut the last one."""
    try:
        yield from path.read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return
