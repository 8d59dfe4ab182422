"""YAML of nested dictionaries and lists. Texts are JSON strings, which are valid YAML, or blocks of lines."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

Yaml = Mapping[str, "Yaml"] | Sequence["Yaml"] | str | int

PLAIN_KEY = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)


def yaml_text(*documents: Yaml) -> str:
    """Return the documents as one file."""
    return "---\n".join("".join(f"{line}\n" for line in _lines(document)) for document in documents)


def _lines(value: Yaml) -> Iterator[str]:
    if isinstance(value, str) and value.endswith("\n"):
        yield "|"
        yield from _indented(value.splitlines())
    elif isinstance(value, str | int):
        yield json.dumps(value, ensure_ascii=False)
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _entry(key if PLAIN_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False), child)
    else:
        for child in value:
            first, *others = _lines(child)
            yield f"- {first}"
            yield from others if isinstance(child, str) else _indented(others)


def _entry(key: str, value: Yaml) -> Iterator[str]:
    first, *others = _lines(value)
    if isinstance(value, str | int):
        yield f"{key}: {first}"
        yield from others
    else:
        yield f"{key}:"
        yield from _indented([first, *others])


def _indented(lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    return (f"  {line}" if line else "" for line in lines)
