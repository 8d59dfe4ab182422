"""Make names from a run safe to print: no terminal commands, no new lines."""

from unicodedata import category

ELLIPSIS = "..."
LAYOUT = "\n\t"
SPACE = "Zs"
"""Category of spaces, e.g. the one that does not break a line."""


def printable(name: str) -> str:
    """Return `name` with escapes for everything that does not print, e.g. "\\x1b" for ESC.

    Covers control characters, ANSI sequences, line separators, bidirectional overrides and lone
    surrogates. Letters of all scripts stay.
    """
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in name)


def visible(text: str) -> str:
    """Return a text of several lines like `printable`, except that new lines, tabs and all spaces stay."""
    if text.isprintable():
        return text
    return "".join(char if char in LAYOUT or category(char) == SPACE else printable(char) for char in text)


def short(name: str, *, max_length: int) -> str:
    """Return `printable(name)`; if it is longer than `max_length` characters (at least 5), without its middle."""
    half = max_length // 2
    ends = printable(name if len(name) <= max_length else f"{name[:max_length]}{name[-max_length:]}")
    if len(name) <= max_length and len(ends) <= max_length:
        return ends
    return ends[: max_length - half - len(ELLIPSIS)] + ELLIPSIS + ends[len(ends) - half :]
