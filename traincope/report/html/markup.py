"""HTML with automatic escaping: a plain string is text, and only results of `tag` are markup."""

from html import escape

from markdown_it import MarkdownIt

from traincope.printable import short

MAX_CHARACTERS = 2_000
"""Longest text of a run; longer texts lose their middle here and are complete in the embedded JSON."""
VOID = frozenset({"meta", "br", "hr", "input"})
"""Tags without an end tag."""


class Html(str):
    """Markup, made by `tag` and `joined` or from constants of this package."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | bool | None) -> Html:
    """`<name ...>children</name>`: children that are not Html may be text of a run and are escaped.

    An attribute `data_at` is written `data-at`, `class_` is `class`; None and False leave it out, True has no value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: str) -> Html:
    """Concatenate children and escape plain strings."""
    return Html("".join(child if isinstance(child, Html) else _text(child) for child in children))


def markdown(text: str) -> Html:
    """Convert CommonMark of this package. HTML in it is escaped."""
    return Html(MarkdownIt("commonmark", {"html": False}).render(text))


def _text(content: str) -> str:
    return escape(short(content, max_length=MAX_CHARACTERS), quote=False)


def _attribute(key: str, value: str | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(short(str(value), max_length=MAX_CHARACTERS))}"'


def block(content: str, *, kind: str, name: str) -> Html:
    """A `<script>` element with data that never runs; `content` is JSON or base64, `kind` its media type."""
    safe = content.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Html(f'<script type="{escape(kind)}" id="{escape(name)}">{safe}</script>')
