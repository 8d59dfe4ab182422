"""The tiles that the agent of a finished job leaves are those that a viewer makes itself, and are trusted as long."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.recorded import rank_of
from tests.live.test_agent import here
from tests.viewer.reading import Here, reread
from traincope.live.leaving import BYTES_OF_TILES, is_over, leave_tiles
from traincope.record.identity import this_host
from traincope.store.layout import AGENT_LOG, RANK_FILE
from traincope.store.tiles import HEADER_FILE, open_tiles
from traincope.viewer.adopting import adopt, left_tiles
from traincope.viewer.keeping import ANALYSIS_FILE
from traincope.viewer.library import Library
from traincope.viewer.preparing import prepare

PLENTY = 1 << 30


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose agent, a process of its own, has left tiles."""
    run = here("demo", tmp_path_factory.mktemp("left") / "run")
    command = [sys.executable, "-m", "traincope.cli.main", "agent", str(run)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout == (
        f"120 ledger rows written to {run}/attempt-000\ntiles for viewers written to {left_tiles(run)}\n"
    )
    return run


@pytest.fixture
def run(left: Path, tmp_path: Path) -> Path:
    """A copy of it whose files are as old as it."""
    return Path(shutil.copytree(left, tmp_path / "run", copy_function=shutil.copyfile))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def change(card: Path, **values: Any) -> None:
    card.write_text(json.dumps(json.loads(card.read_text()) | values))


def test_they_are_what_a_viewer_makes_to_the_byte(left: Path, tmp_path: Path) -> None:
    prepare(left, tmp_path / "own")
    theirs, own = contents(left_tiles(left)), contents(tmp_path / "own")
    del own[ANALYSIS_FILE]
    assert theirs == own
    assert {"header.json", "spans.bin", "document.json"} <= theirs.keys()
    spans = open_tiles(left_tiles(left)).spans
    assert len(spans) > 1000
    assert len(b"".join(theirs.values())) < BYTES_OF_TILES * len(spans) + len(theirs["document.json"]) + (1 << 16)


def test_a_viewer_shows_them_at_once_also_those_of_a_copy_and_keeps_links_alone(run: Path, tmp_path: Path) -> None:
    before = sorted(run.rglob("*"))
    library = Library([run], cache=tmp_path / "cache", begin=Here)
    library.refresh()
    opened = library[0]
    assert opened.tiles is not None
    assert opened.tiles.path.is_relative_to(tmp_path / "cache")
    assert {path.resolve().parent for path in opened.tiles.path.glob("*.bin")} == {left_tiles(run).resolve()}
    assert contents(opened.tiles.path) == contents(left_tiles(run))
    assert opened.document is not None
    assert opened.analysis is None
    reread(library)
    assert library[0].analysis is not None
    assert sorted(run.rglob("*")) == before


def test_what_the_agent_says_of_itself_changes_nothing_and_any_other_file_makes_them_stale(
    run: Path, tmp_path: Path
) -> None:
    (rank_of(run) / AGENT_LOG).write_text("a line\n")
    adopt(run, tmp_path / "cache" / "one")
    (run / "launcher.jsonl").write_text("{}\n")
    adopt(run, tmp_path / "cache" / "two")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["one"]
    (run / "launcher.jsonl").unlink()
    adopt(run, tmp_path / "cache" / "three")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["three"], "older ones go"


def test_damaged_ones_are_left_alone(run: Path, tmp_path: Path) -> None:
    header = left_tiles(run) / HEADER_FILE
    header.write_bytes(header.read_bytes()[:-7])
    adopt(run, tmp_path / "tiles")
    assert not (tmp_path / "tiles").exists()
    assert header.exists()


def test_a_job_is_over_when_every_rank_has_said_so_or_is_gone_from_this_host(left: Path, run: Path) -> None:
    assert is_over(left, attempt=0)
    card = rank_of(run, 2) / RANK_FILE
    change(card, ending=None, pid=2**22 + 1, host=this_host().name)
    assert is_over(run, attempt=0)
    change(card, host="another")
    assert not is_over(run, attempt=0)
    assert leave_tiles(run, attempt=0, disk_budget_bytes=PLENTY, patience_seconds=0) is None
    change(card, ending="clean")
    assert is_over(run, attempt=0)
    (run / "attempt-001").mkdir()
    assert not is_over(run, attempt=0)


def test_of_a_jobs_agents_that_of_rank_0_makes_them(tmp_path: Path) -> None:
    run = here("demo", tmp_path / "run")
    change(rank_of(run, 0) / RANK_FILE, host="another")
    assert is_over(run, attempt=0)
    assert leave_tiles(run, attempt=0, disk_budget_bytes=PLENTY) is None
    assert not (run / "tiles").exists()


@pytest.mark.parametrize(("sample", "budget"), [("demo", 1000), ("format-1", PLENTY)])
def test_none_are_made_that_take_more_of_the_disk_than_the_budget_or_that_a_viewer_makes_in_no_time(
    sample: str, budget: int, tmp_path: Path
) -> None:
    run = here(sample, tmp_path / "run")
    assert is_over(run, attempt=0)
    assert leave_tiles(run, attempt=0, disk_budget_bytes=budget) is None
    assert not (run / "tiles").exists()


def test_where_they_cannot_be_written_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = here("demo", tmp_path / "run")
    (run / "tiles").write_text("in the way")
    assert leave_tiles(run, attempt=0, disk_budget_bytes=PLENTY) is None
    assert "no tiles are left for viewers, they make their own: [Errno" in caplog.text
