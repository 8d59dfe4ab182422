"""A section on a console: its heading and what stands next to it, tables, lines and the few figures of characters."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from traincope.lines import Trimmed, indented, table, text
from traincope.palette import GOOD, SEVERE
from traincope.report.sections.section import (
    Alarm,
    Aside,
    Bars,
    Choice,
    Drawing,
    Findings,
    Lines,
    Listing,
    On,
    Section,
    Words,
)
from traincope.report.sections.section import Table as Rows
from traincope.report.sections.values import plain
from traincope.report.text.bars import bars
from traincope.report.text.timetable import recorded

DRAWN: Mapping[str, Callable[..., RenderableType]] = {"timetable": recorded}
"""Figures of characters: name -> the function that makes it of a caption and its results."""
STYLES: Mapping[type, str] = {Alarm: SEVERE, Aside: "dim"}
"""Cell -> style of its row."""


def print_sections(sections: Iterable[Iterable[RenderableType]], console: Console) -> None:
    """Print sections with an empty line between two; those without a line are left out."""
    for index, section in enumerate(sections):
        for place, renderable in enumerate(section):
            if index and not place:
                console.print()
            console.print(Trimmed(renderable), end="")


def on_console(section: Section, document: Mapping[str, object]) -> Iterator[RenderableType]:
    """The lines of a section; an empty one is its heading with the reason."""
    head = Text(section.title.upper(), style="bold")
    lead = plain(document, section.lead) if section.missing is None else _in_line(section.missing)
    yield head.append_text(text(f"  {lead}" if lead else "", style="not bold dim"))
    for part in section.parts:
        match part:
            case Rows() if part.on is not On.SCREEN and part.rows:
                yield _table(part, document)
            case Bars():
                yield bars(part, document)
            case Lines() if part.on is not On.SCREEN and part.lines:
                yield indented(_line(line, document, style="" if part.facts else "dim") for line in part.lines)
            case Listing() if part.on is not On.SCREEN:
                yield indented(map(text, part.lines))
            case Findings():
                yield _findings(part, document)
            case Drawing() if part.on is On.CONSOLE:
                yield DRAWN[part.figure](part.caption, *part.of)
            case Rows() | Lines() | Listing() | Drawing() | Choice():
                pass


def _findings(part: Findings, document: Mapping[str, object]) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", width=3)
    grid.add_column(ratio=1, overflow="fold")
    for position, item in enumerate(part.items, start=1):
        head = text(item.kind.words, style=f"bold {GOOD if item.good else SEVERE}")
        grid.add_row(f"{position}.", head.append_text(text(f"  {plain(document, item.facts)}", style="not bold dim")))
        grid.add_row("", text(item.evidence))
        if item.advice:
            grid.add_row("", Text("do: ", style="bold").append_text(text(item.advice, style="not bold")))
    return grid


def _in_line(sentence: str) -> str:
    """A sentence behind a heading: without capital and full stop."""
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


def _table(part: Rows, document: Mapping[str, object]) -> RenderableType:
    shown = table(*part.heads, wraps=part.wraps)
    for at, column in enumerate(shown.columns):
        column.justify = "left" if at in part.left else "right"
    for row in part.rows:
        first, *others = (text(plain(document, cell)) for cell in row)
        shown.add_row(text(f"    {first.plain}"), *others, style=_style(row))
    return shown


def _line(line: Words, document: Mapping[str, object], *, style: str) -> Text:
    return text(plain(document, line), style=STYLES.get(type(line), style))


def _style(row: tuple[object, ...]) -> str:
    return next((STYLES[type(cell)] for cell in row if type(cell) in STYLES), "")
