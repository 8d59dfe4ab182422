"""Lines and tables of every text report: plain text, no frames, no trailing blanks, ASCII where the output is ASCII."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from traincope.printable import printable

INDENT = 4


def text(content: str, style: str = "") -> Text:
    """A rich Text of `content`, with control characters made visible and without markup or emoji codes."""
    return Text(printable(content), style=style)


def table(*heads: str) -> Table:
    """An empty table with one column per head: names left and shortened first, numbers right."""
    rows = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for index, head in enumerate(heads):
        if index == 0:
            rows.add_column(f"{' ' * INDENT}{head}", no_wrap=True, overflow="ellipsis")
        else:
            rows.add_column(head, justify="right", no_wrap=True)
    return rows


def indented(lines: Iterable[Text]) -> Table:
    """Indented lines below a head. A line that is too long continues on the next row, indented."""
    grid = Table.grid()
    grid.add_column(width=INDENT)
    grid.add_column(ratio=1)
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
