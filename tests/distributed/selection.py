"""What of a sweep `make test` runs."""

from collections.abc import Collection, Iterable

import pytest


def swept(rows: Iterable[str], *, but: Collection[str]) -> list[object]:
    """All rows, as parameters: `make test` leaves them to `make test-engine`, but for these few."""
    rows = list(rows)
    assert set(but) <= set(rows)
    return [pytest.param(row, marks=[] if row in but else [pytest.mark.sweep]) for row in rows]
