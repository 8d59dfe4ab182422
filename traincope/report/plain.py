"""Text of a run for the console."""

from rich.text import Text

from traincope.plain import plain


def text(content: str, style: str = "") -> Text:
    """A rich Text of `content` made plain: markup and emoji codes in it mean nothing."""
    return Text(plain(content), style=style)
