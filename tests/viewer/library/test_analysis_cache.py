"""The analysis cache: complete or missing, and a planted pickle calls nothing."""

import os
import pickle
from pathlib import Path

import pytest

from traincope.events import Kind
from traincope.store import read_run
from traincope.store.segments.segments import SegmentFile
from traincope.viewer.library.analysis_cache import ANALYSIS_FILE, load_analysis


class Hostile:
    """A pickle with a call."""

    def __init__(self, call: object, *arguments: object) -> None:
        self.reduced = call, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.reduced


@pytest.mark.parametrize(
    "call",
    [os.mkdir, Path.mkdir, exec, SegmentFile, read_run],
    ids=["os", "a method of a class that is allowed", "builtin", "a class of traincope", "a function of traincope"],
)
def test_a_pickle_with_a_call_is_damaged_and_not_called(tmp_path: Path, call: object) -> None:
    planted = tmp_path / "planted"
    (tmp_path / ANALYSIS_FILE).write_bytes(pickle.dumps(Hostile(call, planted)))
    assert load_analysis(tmp_path) is None
    assert not planted.exists()


@pytest.mark.parametrize("content", [b"", b"\x80", pickle.dumps(Kind.STEP), pickle.dumps([1, 2, 3])[:-4]])
def test_another_pickle_is_none(tmp_path: Path, content: bytes) -> None:
    assert load_analysis(tmp_path) is None
    (tmp_path / ANALYSIS_FILE).write_bytes(content)
    assert load_analysis(tmp_path) is None
