"""docs/operate/security.md names a test of each statement, and these tests exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?!statement|---)(.+) \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", re.MULTILINE)


def test_every_statement_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "operate" / "security.md").read_text()
    rows = ROW.findall(page)
    assert len(rows) == sum(line.startswith("| ") for line in page.splitlines()) - page.count("| statement | test |")
    assert len(rows) >= 15
    for statement, file, test in rows:
        assert f"def {test}(" in (ROOT / file).read_text(), statement
