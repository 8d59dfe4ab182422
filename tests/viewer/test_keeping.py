"""An analysis that was kept: whole, or none; and nothing is called that somebody else has put there."""

import os
import pickle
from pathlib import Path

import pytest

from traincope.events import Kind
from traincope.store import read_run
from traincope.store.segments import SegmentFile
from traincope.viewer.keeping import ANALYSIS_FILE, kept


class Hostile:
    """What a pickle may hold."""

    def __init__(self, call: object, *arguments: object) -> None:
        self.reduced = call, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.reduced


@pytest.mark.parametrize(
    "call",
    [os.mkdir, Path.mkdir, exec, SegmentFile, read_run],
    ids=["os", "a method of a class that is allowed", "builtin", "a class of traincope", "a function of traincope"],
)
def test_a_pickle_that_calls_something_is_taken_for_damaged_and_calls_nothing(tmp_path: Path, call: object) -> None:
    planted = tmp_path / "planted"
    (tmp_path / ANALYSIS_FILE).write_bytes(pickle.dumps(Hostile(call, planted)))
    assert kept(tmp_path) is None
    assert not planted.exists()


@pytest.mark.parametrize("content", [b"", b"\x80", pickle.dumps(Kind.STEP), pickle.dumps([1, 2, 3])[:-4]])
def test_what_is_no_analysis_is_none(tmp_path: Path, content: bytes) -> None:
    assert kept(tmp_path) is None
    (tmp_path / ANALYSIS_FILE).write_bytes(content)
    assert kept(tmp_path) is None
