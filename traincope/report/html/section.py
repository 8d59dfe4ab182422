"""A part of the page: a heading, a summary, figures and tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traincope.report.html.markup import Html, joined, tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the page; `name` is its anchor."""

    name: str
    title: str
    lead: str = ""
    """One line next to the heading."""
    body: tuple[Html, ...] = ()
    missing: str | None = None
    """The reason why the section is empty; it then has no body."""

    @property
    def html(self) -> Html:
        head = tag("h2", self.title, *([tag("span", self.lead, class_="lead")] if self.lead else []))
        body = self.body if self.missing is None else (tag("p", self.missing, class_="nothing"),)
        return tag("section", head, *body, id=self.name)


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, words: Iterable[int] = (0,)) -> Html:
    """A table with numbers on the right and the columns `words` on the left; the caption is for screen readers."""
    text_columns = frozenset(words)
    head = tag("tr", *(tag("th", name, scope="col", class_=_side(at, text_columns)) for at, name in enumerate(heads)))
    lines = [
        tag("tr", *(tag("td", cell, class_=_side(at, text_columns)) for at, cell in enumerate(row))) for row in rows
    ]
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *lines))
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _side(column: int, text_columns: frozenset[int]) -> str | None:
    return "words" if column in text_columns else None


def swatch(colour: str) -> Html:
    """A dot in the colour that the figures use."""
    return tag("span", class_="swatch", style=f"background:{colour}", aria_hidden="true")


def notes(lines: Iterable[str]) -> Html:
    """A list of notes; empty for no lines."""
    items = [tag("li", line) for line in lines]
    return tag("ul", *items, class_="notes") if items else joined()
