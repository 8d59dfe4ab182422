"""Lines and tables of every text report: plain text, no frames, no trailing blanks, ASCII where the output is ASCII."""

from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from traincope.printable import printable

INDENT = 4
GAP = 2
"""Blanks between columns."""
MIN_NAME = 12
"""Columns that a name keeps."""
ENOUGH_NAME = 24
"""Columns of a name below which the heads of numbers wrap first."""


def text(content: str, style: str = "") -> Text:
    """A rich Text of `content`, with control characters made visible and without markup or emoji codes."""
    return Text(printable(content), style=style)


class Rows(Table):
    """A table that shortens names where it does not fit, wraps the heads of numbers, and never cuts a number."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names, *numbers = self.columns
        named = _width([str(names.header), *map(str, names.cells)])
        cells = [_width(map(str, column.cells)) for column in numbers]
        one_line = [max(width, len(str(column.header))) for column, width in zip(numbers, cells, strict=True)]
        room = options.max_width - GAP * len(numbers)
        if named + sum(one_line) > room and self.columns[-1].overflow != "fold":
            wrapped = [
                max(width, _width(str(column.header).split())) for column, width in zip(numbers, cells, strict=True)
            ]
            widths = one_line if ENOUGH_NAME + sum(one_line) <= room else wrapped
            for column, width in zip(numbers, widths, strict=True):
                column.width, column.no_wrap = width, False
            names.width = min(named, max(room - sum(widths), MIN_NAME))
        yield from super().__rich_console__(console, options)


def _width(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def table(*heads: str, wraps: bool = False) -> Rows:
    """An empty table with one column per head: names left and shortened first, numbers right.

    `wraps`: the last column has sentences, which wrap.
    """
    rows = Rows(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    for index, head in enumerate(heads):
        if index == 0:
            rows.add_column(f"{' ' * INDENT}{head}", no_wrap=True, overflow="ellipsis")
        elif wraps and index == len(heads) - 1:
            rows.add_column(head, overflow="fold")
        else:
            rows.add_column(head, justify="right", no_wrap=True)
    return rows


def indented(lines: Iterable[Text]) -> Table:
    """Indented lines below a head. A line that is too long continues on the next row, indented,
    and so does a word: the end of a path is its file's name.
    """
    grid = Table.grid()
    grid.add_column(width=INDENT)
    grid.add_column(ratio=1, overflow="fold")
    for line in lines:
        grid.add_row("", line)
    return grid


class Trimmed:
    """Prints `renderable` with each line cut after its last visible character.

    On a console that can only print ASCII, every other character becomes "?". A name or the ellipsis of a shortened
    name must not make the report fail.
    """

    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.renderable, options, pad=False):
            trimmed = _trim(line)
            yield from (_ascii(segment) for segment in trimmed) if options.ascii_only else trimmed
            yield Segment.line()


def _trim(line: Iterable[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.rstrip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    return kept


def _ascii(segment: Segment) -> Segment:
    return Segment(segment.text.encode("ascii", "replace").decode("ascii"), segment.style)
