"""Colour scales of heat maps; zero is nearly transparent, so they work on light and dark pages."""

from traincope.palette import BLUE, VERMILLION, translucent

Scale = list[tuple[float, str]]
FAINT = 0.07
"""Opacity of zero; it distinguishes a known zero from a missing cell."""


def rising(colour: str = VERMILLION) -> Scale:
    """A scale from nearly transparent to `colour` ("#RRGGBB")."""
    return [(0.0, translucent(colour, FAINT)), (1.0, translucent(colour, 1.0))]


def around(low: str = BLUE, high: str = VERMILLION) -> Scale:
    """A scale from `low` over nearly transparent in the middle to `high`."""
    return [
        (0.0, translucent(low, 1.0)),
        (0.5, translucent(low, FAINT)),
        (0.5, translucent(high, FAINT)),
        (1.0, translucent(high, 1.0)),
    ]
