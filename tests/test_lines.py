"""Lines and tables of text reports."""

import io

import pytest
from rich.console import Console

from traincope.lines import Trimmed, table, text


def test_markup_in_a_name_is_only_text() -> None:
    shown = text("[red]x[/red] :smile:")
    assert shown.plain == "[red]x[/red] :smile:"
    assert shown.spans == []


def drawn(width: int, *heads: str, cells: tuple[str, ...]) -> list[str]:
    rows = table(*heads)
    rows.add_row(*map(text, cells))
    console = Console(file=io.StringIO(), width=width)
    console.print(Trimmed(rows), end="")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_numbers_stay_whole_where_names_and_heads_do_not_fit() -> None:
    """A name of 44 columns, and numbers of 8 and 12 below heads of 13 and 12: 40 columns, with a gap of 2."""
    cells = ("    exposed_transfer[a_long_name_of_an_axis]", "-100.0 %", "123: -12.3 %")
    assert drawn(80, "term", "critical path", "most on rank", cells=cells)[-1] == (
        "    exposed_transfer[a_long_name_of_an_axis]       -100.0 %  123: -12.3 %"
    )
    assert drawn(48, "term", "critical path", "most on rank", cells=cells) == [
        "                          critical",
        "    term                      path  most on rank",
        "    exposed_transfer[a_…  -100.0 %  123: -12.3 %",
    ]


@pytest.mark.parametrize("width", [60, 70, 80, 100])
def test_a_table_of_seven_columns_cuts_no_number(width: int) -> None:
    cells = ("    exposed_transfer[unknown]", "0.0 %", "20.0 %", "+20 %", "20 %", "-", "0: 3 %")
    heads = ("term", "A", "B", "change", "of step", "critical path", "most on rank")
    assert drawn(width, *heads, cells=cells)[-1].endswith(" 0: 3 %")
    assert "…" not in drawn(width, *heads, cells=cells)[-1].partition("]")[2]
