"""The look of every table: no frame, dim heads, first column left, numbers right."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

INDENT = 4


def table(*heads: str) -> Table:
    """An empty table with one column a head; a first column of names gives way before numbers do."""
    rows = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for index, head in enumerate(heads):
        if index == 0:
            rows.add_column(f"{' ' * INDENT}{head}", no_wrap=True, overflow="ellipsis")
        else:
            rows.add_column(head, justify="right", no_wrap=True)
    return rows


def indented(lines: Iterable[Text]) -> Table:
    """Lines under a head; a line too long for the console goes on below itself."""
    grid = Table.grid()
    grid.add_column(width=INDENT)
    grid.add_column(ratio=1)
    for line in lines:
        grid.add_row("", line)
    return grid
