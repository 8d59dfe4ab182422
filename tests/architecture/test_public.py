"""The public names and signatures are the committed ones."""

from pathlib import Path

import traincope
from tests.architecture.public import public

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
LIST = Path(__file__).with_name("public.txt")


def test_the_public_names_are_the_committed_ones() -> None:
    """A line that changes or goes is a breaking change: docs/reference/stability.md has the steps."""
    assert public().splitlines() == LIST.read_text().splitlines(), (
        "run `make public` and read docs/reference/stability.md"
    )


def test_the_page_of_python_lists_every_public_name() -> None:
    lines = PAGE.read_text().splitlines()
    listed = {line.removeprefix("::: traincope.") for line in lines if line.startswith("::: traincope.")}
    assert {name for name in listed if "." not in name} == {*traincope.__all__}
