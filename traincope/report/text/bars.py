"""Horizontal bars of characters, with a resolution of an eighth of a cell where the terminal has block characters."""

from collections.abc import Mapping
from itertools import repeat

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from traincope.lines import text
from traincope.palette import colour
from traincope.report.sections.section import Bars, Row, Term
from traincope.report.sections.values import lengths, plain

FULL = "█"
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
ASCII_FULL = "#"
MIN_WIDTHS = (24, 8, 9)
"""Smallest widths of the first columns, in cells."""


def bars(part: Bars, document: Mapping[str, object]) -> Table:
    """The rows, with bars as long as the column that is left, scaled to the longest."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", min_width=MIN_WIDTHS[0])
    for width in (*MIN_WIDTHS[1:], *repeat(None, len(part.whole) - len(MIN_WIDTHS))):
        table.add_column(justify="right", no_wrap=True, min_width=width)
    table.add_column(ratio=1)
    for row, length in zip(part.rows, lengths(document, part), strict=True):
        if isinstance(row[0], Term):
            table.add_row(*_cells(row, document), Bar(length, style=colour(row[0].name)))
        else:
            table.add_row(*_cells(row, document, indent=6), style="dim")
    table.add_row(*_cells(part.whole, document), style="bold")
    return table


def _cells(row: Row, document: Mapping[str, object], *, indent: int = 4) -> list[Text]:
    return [text(" " * (0 if at else indent) + plain(document, cell)) for at, cell in enumerate(row)]


class Bar:
    """A bar as wide as its column."""

    def __init__(self, ratio: float, *, style: str) -> None:
        self.ratio = ratio
        self.style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = bar(self.ratio, width=options.max_width, ascii_only=options.ascii_only)
        yield Text(cells, style=self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(4, options.max_width)


def bar(ratio: float, *, width: int, ascii_only: bool = False) -> str:
    """`ratio` of `width` cells, at most `width`; negative is empty, anything positive is visible.

    With `ascii_only` whole `#` cells are drawn, for outputs that cannot carry block characters.
    """
    filled = min(max(ratio, 0.0), 1.0) * width
    if ascii_only:
        return ASCII_FULL * max(round(filled), int(ratio > 0))
    whole, eighths = divmod(max(round(filled * 8), int(ratio > 0)), 8)
    return FULL * whole + EIGHTHS[eighths]
