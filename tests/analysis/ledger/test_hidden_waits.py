"""Waits of a host under the work of its GPU, known by hand."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from tests.timeline.build import phase, rank, step, timeline
from traincope.analysis.ledger.hidden_waits import _of_rank
from traincope.events import Phase
from traincope.timeline.timeline import HOST_THREAD

MS = 1_000_000


@pytest.mark.parametrize(
    ("marks", "hidden"),
    [(None, {"gc": 5 * MS, "compile": 20 * MS}), ("by marks", {"gc": 5 * MS})],
)
def test_marks_do_not_show_that_a_compilation_is_hidden(marks: Any, hidden: dict[str, int]) -> None:
    """A forward of 60 ms with 5 ms of garbage collection and 20 ms of compilation; 10 ms more lie outside it."""
    rows = (
        step(0, 0, 100 * MS),
        phase(Phase.FORWARD, 0, 60 * MS, at=0),
        phase(Phase.GC, 10 * MS, 15 * MS, at=0, thread=HOST_THREAD),
        phase(Phase.COMPILE, 40 * MS, 60 * MS, at=0, thread=HOST_THREAD),
        phase(Phase.COMPILE, 80 * MS, 90 * MS, at=0, thread=HOST_THREAD),
    )
    (traced,) = timeline(rank(0, *rows)).ranks
    assert _of_rank(replace(traced, marks=cast(Any, marks)), numbers=np.array([0])) == hidden
