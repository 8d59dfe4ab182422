"""Text in a figure. Plotly reads tags in every text it draws, so what a run named never gets there raw."""

from html import escape

from traincope.plain import short

LONGEST = 60


def label(name: str, *, most: int = LONGEST) -> str:
    """`name` as plotly shows it letter by letter: plain, no longer than `most`, its tags text.

    For ticks, texts and `customdata`; never inside a template, where `%{}` would mean something.
    """
    return escape(short(name, most=most), quote=False)
