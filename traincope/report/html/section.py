"""A part of the page: a heading, what it says in words, and its figures and tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traincope.report.html.markup import Html, joined, tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """`name` is its address on the page."""

    name: str
    title: str
    lead: str = ""
    """One line beside the heading."""
    body: tuple[Html, ...] = ()
    missing: str | None = None
    """Why there is nothing to see; then there is no body."""

    @property
    def html(self) -> Html:
        head = tag("h2", self.title, *([tag("span", self.lead, class_="lead")] if self.lead else []))
        body = self.body if self.missing is None else (tag("p", self.missing, class_="nothing"),)
        return tag("section", head, *body, id=self.name)


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, words: Iterable[int] = (0,)) -> Html:
    """Numbers right, the columns `words` left; the caption is for who cannot see the heading above."""
    left = frozenset(words)
    head = tag("tr", *(tag("th", name, scope="col", class_=_side(at, left)) for at, name in enumerate(heads)))
    lines = [tag("tr", *(tag("td", cell, class_=_side(at, left)) for at, cell in enumerate(row))) for row in rows]
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *lines))
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _side(column: int, left: frozenset[int]) -> str | None:
    return "words" if column in left else None


def swatch(colour: str) -> Html:
    """A dot in the colour that figures have."""
    return tag("span", class_="swatch", style=f"background:{colour}", aria_hidden="true")


def notes(lines: Iterable[str]) -> Html:
    """Small print; nothing where there is none."""
    items = [tag("li", line) for line in lines]
    return tag("ul", *items, class_="notes") if items else joined()
