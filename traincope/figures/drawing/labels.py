"""Text of a run in a figure, escaped because plotly interprets tags in every text."""

from html import escape

from traincope.printable import short

MAX_CHARACTERS = 60


def label(name: str, *, max_length: int = MAX_CHARACTERS) -> str:
    """Escape `name` for plotly and cut it to `max_length` letters.

    For ticks, texts and `customdata`; never inside a template, where `%{}` would mean something.
    """
    return escape(short(name, max_length=max_length), quote=False)
