"""The page of worked numbers: each is what its command prints, and what the formula gives by hand."""

import pytest

from evaluation.truth.formulas.worked import PAGE, SECTIONS, Row, page

ROWS = [row for rows in SECTIONS.values() for row in rows()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_number_is_the_one_computed_by_hand(row: Row) -> None:
    assert row.computed() == pytest.approx(row.truth, rel=0, abs=row.within)


def test_the_page_is_what_the_commands_print() -> None:
    assert PAGE.read_text() == page()
