"""All numbers printed in papers. `make truth-plan` prints the table."""

from tests.truth.formulas.published import Row, rows


def test_every_published_number_is_reproduced() -> None:
    published = list(rows())
    assert len(published) == 114
    assert [row for row in published if not row.holds] == []


def test_a_wrong_number_fails_the_comparison() -> None:
    off = Row(source="", quantity="", truth=27.3, computed=27.36, within=0.05)
    assert not off.holds
