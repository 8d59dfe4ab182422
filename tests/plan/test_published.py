"""All numbers printed in papers. `make truth-plan` prints the table."""

import re
from pathlib import Path
from statistics import median

import pytest

from evaluation.truth.formulas import peaks
from evaluation.truth.formulas.published import Row, rows


def test_every_published_number_is_reproduced() -> None:
    published = list(rows())
    assert [row for row in published if not row.holds] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "pattern"),
    [
        ("docs/develop/claims.md", r"`traincope plan` gives (\d+) numbers that papers print"),
        ("docs/plan/README.md", r"compares these formulas with (\d+) published numbers"),
    ],
)
def test_pages_have_their_number(page: str, pattern: str) -> None:
    stated = re.findall(pattern, (Path(__file__).parents[2] / page).read_text())
    assert stated == [str(sum(row.printed for row in rows()))]


def test_a_wrong_number_fails_the_comparison() -> None:
    off = Row(source="", quantity="", truth=27.3, computed=27.36, within=0.05)
    assert not off.holds


def test_planned_memory_is_near_megatrons_peaks_and_below_torchtitans_reserved_bytes() -> None:
    errors = [abs(row.error) for row in peaks.rows()]
    assert len(errors) == 13
    assert median(errors) <= peaks.MEDIAN
    assert max(errors) <= peaks.MOST
    assert all(row.error < 0 for row in peaks.reserved_rows())
