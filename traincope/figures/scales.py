"""Colours of heat maps: nothing is hardly there, so that they read alike on light and dark paper."""

from traincope.palette import BLUE, VERMILLION

Scale = list[tuple[float, str]]
FAINT = 0.07
"""Opacity of nothing: a cell that is there, unlike one of which nothing is known."""


def rising(colour: str = VERMILLION) -> Scale:
    """From nothing to all of `colour` ("#RRGGBB")."""
    return [(0.0, _faded(colour, FAINT)), (1.0, _faded(colour, 1.0))]


def around(low: str = BLUE, high: str = VERMILLION) -> Scale:
    """From all of `low` over nothing in the middle to all of `high`."""
    return [(0.0, _faded(low, 1.0)), (0.5, _faded(low, FAINT)), (0.5, _faded(high, FAINT)), (1.0, _faded(high, 1.0))]


def _faded(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"
