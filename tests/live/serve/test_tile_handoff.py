"""Tiles from the agent of a finished job equal those of a viewer, and become stale under the same conditions."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.live.node.test_agent import here
from tests.live.recorded import dead_process, rank_of
from tests.viewer.library.reading import Here, reread
from traincope.live.serve import tile_handoff
from traincope.live.serve.tile_handoff import TILE_BYTES_PER_RECORD, is_over, ship_tiles
from traincope.store.layout import AGENT_LOG, RANK_FILE
from traincope.tiles.storage import HEADER_FILE, open_tiles
from traincope.viewer.library.analysis_cache import ANALYSIS_FILE
from traincope.viewer.library.library import Library
from traincope.viewer.library.preparing import prepare
from traincope.viewer.library.shipped_tiles import link_shipped, shipped_path

PLENTY = 1 << 30


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run with tiles from an agent process."""
    run = here("demo", tmp_path_factory.mktemp("left") / "run")
    command = [sys.executable, "-m", "traincope.cli.main", "agent", str(run)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout == (
        f"120 ledger rows written to {run}/attempt-000\ntiles for viewers written to {shipped_path(run)}\n"
    )
    return run


@pytest.fixture
def run(left: Path, tmp_path: Path) -> Path:
    """Copy of the run with the same file times."""
    return Path(shutil.copytree(left, tmp_path / "run", copy_function=shutil.copyfile))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def change(card: Path, **values: Any) -> None:
    card.write_text(json.dumps(json.loads(card.read_text()) | values))


def test_shipped_tiles_equal_a_viewers_tiles_byte_for_byte(left: Path, tmp_path: Path) -> None:
    prepare(left, tmp_path / "own")
    shipped, made_by_viewer = contents(shipped_path(left)), contents(tmp_path / "own")
    del made_by_viewer[ANALYSIS_FILE]
    assert shipped == made_by_viewer
    assert {"header.json", "spans.bin", "document.json"} <= shipped.keys()
    spans = open_tiles(shipped_path(left)).spans
    assert len(spans) > 1000
    assert len(b"".join(shipped.values())) < TILE_BYTES_PER_RECORD * len(spans) + len(shipped["document.json"]) + (
        1 << 16
    )


def test_a_viewer_uses_shipped_tiles_by_links(run: Path, tmp_path: Path) -> None:
    before = sorted(run.rglob("*"))
    library = Library([run], cache=tmp_path / "cache", begin=Here)
    library.refresh()
    opened = library[0]
    assert opened.tiles is not None
    assert opened.tiles.path.is_relative_to(tmp_path / "cache")
    assert {path.resolve().parent for path in opened.tiles.path.glob("*.bin")} == {shipped_path(run).resolve()}
    assert contents(opened.tiles.path) == contents(shipped_path(run))
    assert opened.document is not None
    assert opened.analysis is None
    reread(library)
    assert library[0].analysis is not None
    assert sorted(run.rglob("*")) == before


def test_shipped_tiles_become_stale_if_any_file_but_the_agents_log_changes(run: Path, tmp_path: Path) -> None:
    (rank_of(run) / AGENT_LOG).write_text("a line\n")
    for note in (".shipped-1.json", "shipping-host-1.json", "shipped-host.json"):
        (rank_of(run).parent / note).write_text("{}")
    link_shipped(run, tmp_path / "cache" / "one")
    (run / "launcher.jsonl").write_text("{}\n")
    link_shipped(run, tmp_path / "cache" / "two")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["one"]
    (run / "launcher.jsonl").unlink()
    link_shipped(run, tmp_path / "cache" / "three")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["three"], "older tiles are removed"


def test_damaged_tiles_are_ignored(run: Path, tmp_path: Path) -> None:
    header = shipped_path(run) / HEADER_FILE
    header.write_bytes(header.read_bytes()[:-7])
    link_shipped(run, tmp_path / "tiles")
    assert not (tmp_path / "tiles").exists()
    assert header.exists()


def test_a_job_is_over_when_every_rank_ended_or_is_gone(left: Path, run: Path) -> None:
    assert is_over(left, attempt=0)
    card = rank_of(run, 2) / RANK_FILE
    change(card, ending=None, process=dead_process())
    assert is_over(run, attempt=0)
    change(card, process=dead_process(boot_id="another"))
    assert not is_over(run, attempt=0)
    assert ship_tiles(run, attempt=0, disk_budget_bytes=PLENTY, patience_seconds=0) is None
    change(card, ending="clean")
    assert is_over(run, attempt=0)
    (run / "attempt-001").mkdir()
    assert not is_over(run, attempt=0)


def test_only_the_agent_of_rank_0_writes_tiles(tmp_path: Path) -> None:
    run = here("demo", tmp_path / "run")
    change(rank_of(run, 0) / RANK_FILE, host="another")
    assert is_over(run, attempt=0)
    assert ship_tiles(run, attempt=0, disk_budget_bytes=PLENTY) is None
    assert not (run / "tiles").exists()


@pytest.mark.parametrize("elsewhere", [0, 3])
def test_hosts_with_run_directories_of_their_own_write_no_tiles_and_do_not_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, elsewhere: int
) -> None:
    """No agent sees all ranks, neither that of rank 0 nor another."""
    run = here("demo", tmp_path / "run")
    shutil.rmtree(rank_of(run, elsewhere))
    slept: list[float] = []
    monkeypatch.setattr(tile_handoff, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    assert ship_tiles(run, attempt=0, disk_budget_bytes=PLENTY) is None
    assert (caplog.messages, slept) == ([], [])


@pytest.mark.parametrize(("sample", "budget"), [("demo", 1000), ("format-1", PLENTY)])
def test_no_tiles_are_written_above_the_disk_budget_or_for_small_runs(sample: str, budget: int, tmp_path: Path) -> None:
    run = here(sample, tmp_path / "run")
    assert is_over(run, attempt=0)
    assert ship_tiles(run, attempt=0, disk_budget_bytes=budget) is None
    assert not (run / "tiles").exists()


def test_tiles_that_cannot_be_written_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = here("demo", tmp_path / "run")
    (run / "tiles").write_text("in the way")
    assert ship_tiles(run, attempt=0, disk_budget_bytes=PLENTY) is None
    assert "cannot write tiles, so viewers make their own: [Errno" in caplog.text
