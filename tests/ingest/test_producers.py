"""The committed table of traces that were read."""

import pytest

from evaluation.written import written_table
from tests.ingest.producers import HEAD, NAME, PAGE, TRACES, line_of

SMALL = "torchrec_2_of_128"


def test_the_table_is_as_its_command_wrote_it() -> None:
    head, rows = written_table(PAGE, NAME)[: len(HEAD)], written_table(PAGE, NAME)[len(HEAD) :]
    assert tuple(head) == HEAD
    assert len(rows) > 5


@pytest.mark.skipif(not (TRACES / SMALL).is_dir(), reason=f"the public traces are not in {TRACES}")
def test_small_public_traces_are_as_the_table_says() -> None:
    paths = sorted((TRACES / SMALL).iterdir())
    assert {line_of(path, TRACES) for path in paths} <= {*written_table(PAGE, NAME)}
