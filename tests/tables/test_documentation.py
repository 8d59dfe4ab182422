"""docs/reference/sql-views.md lists the views of the code."""

from pathlib import Path

from traincope.tables.documentation import described, write
from traincope.tables.views import VIEWS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sql-views.md"


def test_the_page_is_generated_from_the_views(tmp_path: Path) -> None:
    write(str(tmp_path / "page.md"))
    assert (tmp_path / "page.md").read_text() == PAGE.read_text()


def test_every_time_has_its_unit() -> None:
    for view in described():
        for column in view["columns"]:
            of_time = column["name"].endswith("_ns") or column["name"] == "ns"
            assert (column["unit"] == "ns") == of_time, (view["name"], column["name"])
            assert column["help"]


def test_every_view_begins_with_the_run() -> None:
    assert {view["columns"][0]["name"] for view in described()} == {"run"}
    assert [view["name"] for view in described()] == list(VIEWS)
