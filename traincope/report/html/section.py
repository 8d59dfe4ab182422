"""A part of the page: a heading, a summary, figures and tables."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import assert_never

from traincope.figures.drawn import DRAWN
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import choice, plot
from traincope.report.html.values import markup
from traincope.report.schema import Document
from traincope.report.sections import section as data

MAX_FIGURES = 64
"""Figures of a group of scopes that the page holds; it leaves out larger groups."""
NEWLINE = Html("\n")


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
    return scrolled(whole, name=caption)


def scrolled(content: Html, *, name: str) -> Html:
    """Content that is scrolled where it is wider than the page; `name` is for screen readers."""
    return tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=name)


def _side(column: int, text_columns: frozenset[int]) -> str | None:
    return "words" if column in text_columns else None


def notes(lines: Iterable[str], *, style: str = "notes") -> Html:
    """A list of notes; empty for no lines."""
    items = [tag("li", line) for line in lines]
    return tag("ul", *items, class_=style) if items else joined()


def on_page(section: data.Section, document: Document) -> Section:
    """A section of data as a part of the page, and below it those within it."""
    inside = (html for each in section.within for html in _inside(each, document))
    return Section(
        name=section.name,
        title=section.title,
        lead=markup(document, section.lead),
        body=(*_parts(section, document), *inside) if section.missing is None else (),
        missing=section.missing,
    )


def _inside(section: data.Section, document: Document) -> Iterator[Html]:
    yield tag("h3", f"{section.title} ", tag("span", markup(document, section.lead), class_="lead"))
    yield from _parts(section, document)


def _parts(section: data.Section, document: Document) -> Iterator[Html]:
    yield from (_part(part, document) for part in section.on_screens)


def _part(part: data.Shown, document: Document) -> Html:
    match part:
        case data.Table():
            rows = ([markup(document, cell) for cell in row] for row in part.rows)
            shown = table(part.caption, part.heads, rows, words=part.left)
            return tag("details", tag("summary", part.caption), shown) if part.folded else shown
        case data.Drawing():
            return plot(DRAWN[part.figure](*part.of), name=part.figure, caption=part.caption)
        case data.Choice():
            scopes = [scope for group in part.groups if len(group) <= MAX_FIGURES for scope in group]
            figures = {scope: DRAWN[part.figure](*part.of(scope)) for scope in scopes}
            return choice(figures, name=part.figure, caption=part.caption)
        case data.Lines():
            lines = (markup(document, line) for line in part.lines)
            return notes(lines, style="facts" if part.facts else "notes")
        case data.Listing():
            stack = tag("pre", *chain.from_iterable((line, NEWLINE) for line in part.lines))
            return joined(tag("p", part.caption, class_="where"), scrolled(stack, name=part.caption))
        case data.Findings():
            items = (tag("li", *_item(item, document), class_="good" if item.good else "bad") for item in part.items)
            return tag("ol", *items, class_="findings")
        case _:
            assert_never(part)


def _item(item: data.Item, document: Document) -> Iterator[Html]:
    yield tag("h3", markup(document, item.kind))
    yield tag("p", markup(document, item.facts), class_="where")
    shown = [" (", tag("a", "evidence", href=f"#{item.evidence_in}"), ")"] if item.evidence_in else []
    yield tag("p", item.evidence, *shown)
    if item.advice:
        yield tag("p", tag("strong", "Do: "), item.advice, class_="advice")
