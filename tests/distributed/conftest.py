"""Fixtures of the tests that train."""

import pytest


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A text with a next byte that can be learnt, but not at once."""
    path = tmp_path_factory.mktemp("text") / "squares.txt"
    path.write_text("\n".join(f"{n} squared is {n * n}" for n in range(1000)))
    return str(path)
