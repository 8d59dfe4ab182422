"""Limits of an answer, and runs that change while they are served."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

from traincope.errors import NotARunError, UsageError
from traincope.mcp.bounded import MAX_CHARACTERS, MAX_KEYS, MAX_TEXT, bounded
from traincope.mcp.runs import ServedRuns

DEMO = Path(__file__).parents[2] / "sample_runs" / "demo"


def test_a_short_answer_is_unchanged() -> None:
    value = {"a": [1, 2.5, None, True, "text"], "b": {"c": []}}
    assert bounded(value).value == value
    assert bounded(value).shortened == ()


def test_lists_are_cut_and_listed() -> None:
    result = bounded({"ranks": list(range(1000)), "steps": [1]})
    assert result.value == {"ranks": list(range(200)), "steps": [1]}
    assert result.shortened == ("/ranks: the first 200 of 1000",)


def test_a_cut_text_is_listed() -> None:
    result = bounded({"stack": "x" * 5000, "short": "y" * MAX_TEXT})
    assert len(result.value["stack"]) <= MAX_TEXT
    assert result.shortened == ("/stack: 1,000 of 5,000 characters",)


def test_a_long_answer_loses_items_until_it_is_short_enough() -> None:
    rows = [{"name": "x" * MAX_TEXT, "at": at} for at in range(150)]
    result = bounded({"rows": rows})
    assert len(json.dumps(result.value)) <= MAX_CHARACTERS
    assert result.value == {"rows": rows[:50]}
    assert result.shortened == ("/rows: the first 50 of 150",)


@pytest.mark.parametrize("text", ["\x1b[2Jgone", "a\u202eb", "line\nline", "x" * 100_000, "\ud800"])
def test_texts_are_printable_and_short_also_as_keys(text: str) -> None:
    result = bounded({text: text}).value
    ((key, value),) = result.items()
    for each in (key, value):
        assert each.isprintable()
        assert len(each) <= MAX_TEXT


def test_nested_lists_and_many_keys_stay_within_the_limit() -> None:
    nested: Any = {f"key {at}": [["y" * 500] * 100] * 100 for at in range(1000)}
    result = bounded(nested)
    assert len(json.dumps(result.value)) <= 2 * MAX_CHARACTERS
    assert len(result.value) == MAX_KEYS
    assert result.shortened[0] == ": the first 200 of 1000"


def test_a_run_is_read_again_when_its_files_have_changed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(DEMO, run)
    runs = ServedRuns([run])
    first = runs[None]
    assert runs["run"] is first
    shutil.rmtree(run / "attempt-000" / "rank-00003")
    assert runs["run"] is not first
    assert runs["run"].timeline.run.missing == (3,)


def test_only_the_given_runs_are_served(tmp_path: Path) -> None:
    with pytest.raises(NotARunError, match="does not exist"):
        ServedRuns([tmp_path / "nowhere"])
    runs = ServedRuns([DEMO])
    for name in ("demo-3d", str(DEMO), "../demo", ""):
        with pytest.raises(UsageError, match="name one of the runs of this server: demo"):
            runs[name]
