"""Selection of sweep rows for `make test`."""

from collections.abc import Collection, Iterable

import pytest


def swept(rows: Iterable[str], *, but: Collection[str]) -> list[object]:
    """All rows as parameters. `make test` runs only the rows in `but`; `make test-engine` runs all."""
    rows = list(rows)
    assert set(but) <= set(rows)
    return [pytest.param(row, marks=[] if row in but else [pytest.mark.sweep]) for row in rows]
