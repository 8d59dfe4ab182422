"""Commands on a run that is given by the beginning of its name, or not at all."""

import json
import shutil
from pathlib import Path

import pytest

from traincope.cli.main import main

SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.mark.parametrize(
    "words",
    [
        ["report", "--format", "json"],
        ["sql", "select count(*) n from steps", "--format", "json"],
        ["hang", "--format", "json"],
        ["export", "--to", "folded", "-o", "-"],
    ],
)
def test_without_a_run_a_command_takes_the_newest_and_says_so(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`demo` began later than `format-1`. Both answers are of the same run, and only one names it."""
    monkeypatch.chdir(tmp_path)
    for sample in ("demo", "format-1"):
        shutil.copytree(SAMPLES / sample, tmp_path / "traincope_runs" / sample)
    command, *options = words
    with pytest.raises(SystemExit, match="0"):
        main(words)
    newest = capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main([command, "dem", *options])
    named = capsys.readouterr()
    assert newest.err == "the newest run: traincope_runs/demo\n"
    assert (newest.out, "") == (named.out, named.err)
    if "json" in words:
        assert json.loads(named.out)
