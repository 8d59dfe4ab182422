"""Names that come from a run are data: never markup, never terminal commands, never a new line."""

ELLIPSIS = "..."


def plain(name: str) -> str:
    """`name` with everything that does not print made visible, e.g. ESC as "\\x1b".

    Covers control characters, ANSI sequences, line separators, bidirectional overrides and lone
    surrogates; ordinary letters of any script stay.
    """
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in name)


def short(name: str, *, most: int) -> str:
    """`plain(name)`, its middle left out where it is longer than `most` characters (at least 5): both ends tell."""
    half = most // 2
    ends = plain(name if len(name) <= most else f"{name[:most]}{name[-most:]}")
    if len(name) <= most and len(ends) <= most:
        return ends
    return ends[: most - half - len(ELLIPSIS)] + ELLIPSIS + ends[len(ends) - half :]
