"""The table of `traincope ls`, of runs that have only their manifests. `test_run_list.py` holds the values."""

import shutil
from pathlib import Path

import pytest

from traincope.cli.main import main

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"
NAMES = ("trainer-20261126-200110", "trainer-20261126-200614")


@pytest.mark.parametrize(
    ("columns", "shown"), [(80, ("trainer...26-200110", "trainer...26-200614")), (84, NAMES), (150, NAMES)]
)
def test_names_are_told_apart_by_their_ends(
    columns: int,
    shown: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two launches of one script in one minute. A wider terminal shows whole names, before verdicts."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        shutil.copy(DEMO / "run.json", tmp_path / name)
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit, match="0"):
        main(["ls", str(tmp_path)])
    head, *rows, _ = capsys.readouterr().out.splitlines()
    assert tuple(row.split()[0] for row in rows) == shown
    assert all(len(line) <= columns for line in (head, *rows))
    assert ("verdict" in head) == (columns == 150)
