"""HTML that is safe by how it is made: a string is text and becomes escaped, only what `tag` returns is markup."""

from html import escape

from traincope.plain import short

LONGEST = 2_000
"""Letters of a text of a run; what is longer has its middle left out, and is whole in the embedded JSON."""
VOID = frozenset({"meta", "br", "hr", "input"})
"""Tags without an end."""


class Html(str):
    """Markup. Made by `tag` and `joined`, and of constants of this package."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | bool | None) -> Html:
    """`<name ...>children</name>`: children that are no Html are text of a run as likely as not, and escaped.

    An attribute `data_at` is written `data-at`, `class_` is `class`; None and False leave it out, True has no value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: str) -> Html:
    """One after the other."""
    return Html("".join(child if isinstance(child, Html) else _text(child) for child in children))


def _text(content: str) -> str:
    return escape(short(content, most=LONGEST), quote=False)


def _attribute(key: str, value: str | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(short(str(value), most=LONGEST))}"'


def block(content: str, *, kind: str, name: str) -> Html:
    """A `<script>` that is data and never runs, e.g. `kind` application/json; `content` JSON or letters of base64."""
    safe = content.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Html(f'<script type="{escape(kind)}" id="{escape(name)}">{safe}</script>')
