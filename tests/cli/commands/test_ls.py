"""The table of `traincope ls`, of runs that have only their manifests. `test_run_list.py` holds the values."""

import json
import shutil
from pathlib import Path

import pytest

from traincope.cli.main import main
from traincope.units import share

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"
NAMES = ("trainer-20261126-200110", "trainer-20261126-200614")


@pytest.mark.parametrize(
    ("columns", "heads"),
    [
        (60, "    state  steps  MFU  verdict"),
        (80, "run                      state  ranks  steps  MFU  verdict"),
        (100, "run                      state  ranks  steps  MFU       start (UTC)  verdict"),
        (200, "run                      state  ranks  steps  MFU  goodput       start (UTC)  verdict"),
    ],
)
def test_names_are_whole_at_every_width(
    columns: int, heads: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be copied from a line. On a narrow screen each has a line of its own."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        shutil.copy(DEMO / "run.json", tmp_path / name)
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit, match="0"):
        main(["ls", str(tmp_path)])
    head, *rows, number, without = capsys.readouterr().out.splitlines()
    assert (head, number) == (heads, "2 runs")
    assert without == "2 runs without a kept report; traincope report RUN has steps, MFU and verdict"
    assert [row.split()[0] for row in rows if not row.startswith(" ")] == list(NAMES)
    assert len(rows) == (4 if columns == 60 else 2)


def test_a_verdict_is_in_the_line_of_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(DEMO, tmp_path / "nanogpt-1128-1324"))
    document = run / "tiles" / "abc" / "document.json"
    document.parent.mkdir(parents=True)
    shutil.copy(DEMO / "expected.json", document)
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main(["ls", str(tmp_path)])
    _, row, _ = capsys.readouterr().out.splitlines()
    mfu = json.loads(document.read_text())["utilization"]["mfu"]
    assert row.startswith("nanogpt-1128-1324  done ")
    assert row.endswith(f"{share(mfu)}  pipeline bubble")
