"""Rows of the table of docs/reference/versions.md, and what `make compat-matrix` does with them."""

import re

from tests.compat_matrix import PAGE, PYTHONS, ROOT, cells, last_line, rows, with_row

HEAD = "# Versions\n\n| a | b | c | d | e | f | g | h |\n|---|---|---|---|---|---|---|---|\n"
OLD = "| 2.13.0 | 3.11 | CPU | all | all | bit for bit | none | 2026-11-22 |"
NEW = "| 2.13.0 | 3.11 | CPU | **steps: no** | all | bit for bit | none | 2026-11-25 |"
OTHER = "| 2.4.1 | 3.11 | CPU | all | all | bit for bit | none | 2026-11-25 |"


def test_a_row_replaces_that_of_its_combination_and_the_rest_stays() -> None:
    page = f"{HEAD}{OLD}\n\nText | with a bar.\n"
    assert with_row(page, ("2.13.0", "3.11"), NEW) == f"{HEAD}{NEW}\n\nText | with a bar.\n"


def test_a_new_row_has_its_place_by_version() -> None:
    assert with_row(f"{HEAD}{OLD}\n\nText.\n", ("2.4.1", "3.11"), OTHER) == f"{HEAD}{OTHER}\n{OLD}\n\nText.\n"


def test_cells_name_each_check_that_fails() -> None:
    good = {"build": "CPU", "failed": [], "absent_probes": []}
    assert cells(good).startswith("CPU | all | all | bit for bit | none | 20")
    bad = {"build": "CPU", "failed": ["waits", "without the dispatcher", "torch restored"], "absent_probes": ["ddp"]}
    assert cells(bad).startswith(
        "CPU | **waits: no** | **without the dispatcher: no** | **torch restored: no** | ddp | 20"
    )


def test_a_reason_has_no_bar_that_would_end_its_cell() -> None:
    assert last_line("first\na | b\n\n") == "a / b"


def test_of_pips_errors_the_first_is_the_reason() -> None:
    assert last_line("WARNING: old\nERROR: no wheel\nERROR: see this page\n") == "no wheel"


def test_the_page_has_the_pinned_torch() -> None:
    """constraints.txt pins the release that all tests run on; the oldest Python has its row."""
    (pinned,) = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    row = rows(PAGE.read_text())[pinned, PYTHONS[0]]
    assert row.startswith(f"| {pinned} | {PYTHONS[0]} | CPU | all | all | bit for bit | none | 20")
