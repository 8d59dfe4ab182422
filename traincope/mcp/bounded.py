"""Answers of limited size. Every cut is listed, and every text is printable."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from traincope.errors import UsageError
from traincope.printable import short

MAX_CHARACTERS = 60_000
"""Most characters of an answer as JSON."""
MAX_TEXT = 1_000
"""Longest text of an answer; a longer one loses its middle."""
MAX_KEYS = 200
"""Most keys of an object. Those of the report's schema are fewer; a run's mesh axes and phases may be more."""
SIZES = ((200, MAX_TEXT), (50, MAX_TEXT), (10, 500), (3, 200), (1, 100))
"""Most items of a list, and longest text. The first pair is used with which the answer is short enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    value: Any
    shortened: tuple[str, ...]
    """One phrase for each list, object and text that was cut: its place, and how much of it is there."""


def bounded(value: Any) -> Bounded:
    """Copy a JSON value without control characters, and cut it until it is short enough.

    Raises UsageError if that is not possible.
    """
    for max_items, max_text in SIZES:
        cut = _Cut(max_items=max_items, max_text=max_text)
        with suppress(_TooLong):
            copy = cut.copied(value, "")
            if len(json.dumps(copy)) <= MAX_CHARACTERS:
                return Bounded(value=copy, shortened=tuple(cut.notes[:MAX_KEYS]))
    raise UsageError("the answer is too long; ask for fewer sections, or use sql")


class _TooLong(Exception):
    """The copy already has more than MAX_CHARACTERS."""


@dataclass(slots=True, kw_only=True)
class _Cut:
    max_items: int
    max_text: int
    notes: list[str] = field(default_factory=list)
    length: int = 0

    def copied(self, value: Any, place: str) -> Any:
        self.length += 1
        if self.length > MAX_CHARACTERS:
            raise _TooLong
        if isinstance(value, str):
            return self._listed_text(value, place)
        if isinstance(value, Mapping):
            pairs = self._first(list(value.items()), MAX_KEYS, place)
            return {self._text(str(key)): self.copied(each, f"{place}/{key}") for key, each in pairs}
        if isinstance(value, list | tuple):
            kept = self._first(value, self.max_items, place)
            return [self.copied(each, f"{place}/{at}") for at, each in enumerate(kept)]
        return value

    def _listed_text(self, text: str, place: str) -> str:
        if len(text) > self.max_text:
            self.notes.append(f"{self._text(place)}: {self.max_text:,} of {len(text):,} characters")
        return self._text(text)

    def _text(self, text: str) -> str:
        result = short(text, max_length=self.max_text)
        self.length += len(result)
        return result

    def _first(self, values: Any, most: int, place: str) -> Any:
        if len(values) > most:
            self.notes.append(f"{self._text(place)}: the first {most} of {len(values)}")
        return values[:most]
