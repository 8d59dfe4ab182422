"""Names of new runs."""

import os
import re
from pathlib import Path

import pytest

from traincope.record.session.identity import RUN_ID
from traincope.store.places.names import new_run, newest_first, reserve_run

TIME = r"-\d{4}-\d{4}"


@pytest.mark.parametrize(
    ("script", "stem"),
    [
        ("train.py", "train"),
        ("/home/me/my nanoGPT/train gpt.py", "train-gpt"),
        ("/site-packages/nanogpt/__main__.py", "nanogpt"),
        ("-c", "c"),
        ("", "run"),
        ("\u8a13\u7df4.py", "run"),
        ("../--out=$(rm -rf).py", "out-rm-rf"),
        ("x" * 300, "x" * 32),
    ],
)
def test_a_name_is_the_script_and_the_time_and_needs_no_quotes(script: str, stem: str, tmp_path: Path) -> None:
    run = reserve_run(tmp_path / "runs", script)
    assert run.is_dir()
    assert re.fullmatch(re.escape(stem) + TIME, run.name)
    assert RUN_ID.fullmatch(run.name)


def test_each_name_is_given_once(tmp_path: Path) -> None:
    """In one minute or two: what is after the time counts."""
    assert not new_run(tmp_path, "train.py").exists()
    names = [reserve_run(tmp_path, "train.py").name for _ in range(3)] + [new_run(tmp_path, "train.py").name]
    assert len(set(names)) == 4
    assert all(re.fullmatch(rf"train{TIME}(-\d)?", name) for name in names)


def test_a_name_in_a_shared_store_has_a_random_part(tmp_path: Path) -> None:
    """Two directories that do not know each other ship to one bucket."""
    first, second = (reserve_run(tmp_path / place, "train.py", for_store=True).name for place in ("a", "b"))
    assert first != second
    assert re.fullmatch(rf"train{TIME}-[0-9a-f]{{4}}", first)


def test_the_newest_runs_come_first(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new", "middle")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
        os.utime(tmp_path / name / "run.json", (0, (0, 9, 5)[number]))
    (tmp_path / "empty").mkdir()
    assert [run.name for run in newest_first(tmp_path, tmp_path)] == ["new", "middle", "old"]
