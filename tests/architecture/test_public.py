"""The public names and signatures are the committed ones."""

from pathlib import Path

from tests.architecture.public import public

LIST = Path(__file__).with_name("public.txt")


def test_the_public_names_are_the_committed_ones() -> None:
    """A line that changes or goes is a breaking change: docs/reference/stability.md has the steps."""
    assert public().splitlines() == LIST.read_text().splitlines(), (
        "run `make public` and read docs/reference/stability.md"
    )
