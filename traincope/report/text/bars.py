"""Horizontal bars of characters, with a resolution of an eighth of a cell where the terminal has block characters."""

FULL = "█"
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
ASCII_FULL = "#"


def bar(ratio: float, *, width: int, ascii_only: bool = False) -> str:
    """`ratio` of `width` cells, at most `width`; negative is empty, anything positive is visible.

    With `ascii_only` whole `#` cells are drawn, for outputs that cannot carry block characters.
    """
    filled = min(max(ratio, 0.0), 1.0) * width
    if ascii_only:
        return ASCII_FULL * max(round(filled), int(ratio > 0))
    whole, eighths = divmod(max(round(filled * 8), int(ratio > 0)), 8)
    return FULL * whole + EIGHTHS[eighths]
