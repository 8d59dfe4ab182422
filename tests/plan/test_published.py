"""Papers' printed numbers, all of them: `make truth-plan` prints the table."""

from tests.truth.published import Row, rows


def test_every_published_number_is_reproduced() -> None:
    every = list(rows())
    assert len(every) == 114
    assert [row for row in every if not row.holds] == []


def test_a_number_that_is_off_does_not_hold() -> None:
    off = Row(source="", what="", truth=27.3, computed=27.36, within=0.05)
    assert not off.holds
