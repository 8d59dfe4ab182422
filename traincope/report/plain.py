"""Names that come from a run are data: never markup, never terminal commands, never a new line."""

from rich.text import Text


def plain(name: str) -> str:
    """`name` with everything that does not print made visible, e.g. ESC as "\\x1b".

    Covers control characters, ANSI sequences, line separators, bidirectional overrides and lone
    surrogates; ordinary letters of any script stay.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in name)


def text(content: str, style: str = "") -> Text:
    """A rich Text of `content` made plain: markup and emoji codes in it mean nothing."""
    return Text(plain(content), style=style)
