"""Numbers of a section: their values in a document, their places as pointers, and words as plain text."""

from collections.abc import Mapping
from typing import assert_never

from traincope.report.sections.forms import FORMS
from traincope.report.sections.section import (
    Alarm,
    Aside,
    Bars,
    Kind,
    Lines,
    Link,
    Number,
    On,
    Path,
    Section,
    Term,
    Words,
)
from traincope.units import MISSING


def value_at(document: Mapping[str, object], path: Path) -> float | None:
    """The number at `path`; None where a key on the way is null or absent, or the value is not a number."""
    at: object = document
    for key in path:
        if isinstance(at, list) and isinstance(key, int):
            at = at[key]
        elif isinstance(at, dict):
            at = at.get(key)
        else:
            return None
    return at if isinstance(at, int | float) and not isinstance(at, bool) else None


def value_of(document: Mapping[str, object], shown: Number) -> float | None:
    """The value of a number; None where all its summands are missing, or its divisor is missing or 0."""
    known = [value for path in shown.paths if (value := value_at(document, path)) is not None]
    over = None if shown.per is None else value_at(document, shown.per)
    if not known or (shown.per is not None and not over):
        return None
    return sum(known) / over if over else sum(known)


def written(document: Mapping[str, object], shown: Number) -> str:
    """A number as text; a missing one reads "-"."""
    value = value_of(document, shown)
    return MISSING if value is None else FORMS[shown.form](value)


def pointer(path: Path) -> str:
    """JSON pointer (RFC 6901) with spaces encoded as in a URL, because spaces separate pointers in `data-at`."""
    keys = (str(key).replace("~", "~0").replace("/", "~1").replace("%", "%25").replace(" ", "%20") for key in path)
    return "".join(f"/{key}" for key in keys)


def plain(document: Mapping[str, object], words: Words) -> str:
    """Words as text, without colours or places of numbers."""
    match words:
        case str():
            return words
        case Number():
            return written(document, words)
        case Term():
            return words.words or words.name
        case Alarm() | Aside() | Kind() | Link():
            return words.words
        case tuple():
            return "".join(plain(document, each) for each in words)
        case _:
            assert_never(words)


def sentences(document: Mapping[str, object], section: Section) -> list[str]:
    """The words of a section without its tables: its lead and its lines, or why it is empty."""
    if section.missing is not None:
        return [section.missing]
    shown = (part.lines for part in section.parts if isinstance(part, Lines) and part.on is not On.SCREEN)
    said = (plain(document, words) for lines in ((section.lead,), *shown) for words in lines)
    return [sentence for sentence in said if sentence]


def lengths(document: Mapping[str, object], bars: Bars) -> list[float]:
    """The lengths of the rows' bars, of which the longest is 1."""
    shares = [value_of(document, row[1]) or 0.0 for row in bars.rows]
    longest = max(
        (abs(share) for share, row in zip(shares, bars.rows, strict=True) if isinstance(row[0], Term)), default=0
    )
    return [share / (longest or 1.0) for share in shares]
