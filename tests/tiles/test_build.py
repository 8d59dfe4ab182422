"""Tiles of hand-made runs: the place of each span, its wait, and the share of each bin."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.timeline import build
from traincope.errors import RunDirectoryError
from traincope.events import OPEN, Phase
from traincope.tiles import build as building
from traincope.tiles.build import levels, write_tiles
from traincope.tiles.lanes import ACTIVITY
from traincope.tiles.storage import HEADER_FILE, VERSION, Header, Row, Tiles, TilesWriter, open_tiles
from traincope.tiles.zoom import Bars, Raster, Window, zoom
from traincope.timeline import Timeline, match_instances

GROUP = build.group("fsdp", 0, 1, key="g")


def two_ranks() -> Timeline:
    """Rank 0 joins the collective at 40, rank 1 at 60; both complete at 70: 10 are transfer, 20 wait."""
    early = build.collective(40, 70, sequence=1, num_bytes=8)
    late = build.collective(60, 70, sequence=1, num_bytes=8)
    return build.timeline(
        build.rank(
            0,
            build.step(0, 0, 100),
            build.phase(Phase.FORWARD, 0, 40, at=0),
            early,
            build.stall(early, 40, 70),
            build.phase(Phase.BACKWARD, 70, 90, at=0),
            groups=[GROUP],
        ),
        build.rank(
            1,
            build.step(0, 0, 100),
            build.phase(Phase.FORWARD, 0, 60, at=0),
            late,
            build.stall(late, 60, 70),
            groups=[GROUP],
        ),
    )


def tiles_of(timeline: Timeline, path: Path) -> Tiles:
    write_tiles(path, timeline, match_instances(timeline), document=lambda: "{}")
    return open_tiles(path)


def row(tiles: Tiles, rank: int, lane: str) -> Row:
    (result,) = (candidate for candidate in tiles.header.rows if (candidate.rank, candidate.lane) == (rank, lane))
    return result


def pieces(tiles: Tiles, lane: Row) -> list[tuple[int, int, str]]:
    positions = lane.pieces
    columns = (tiles.starts[positions].tolist(), tiles.ends[positions].tolist(), tiles.classes[positions].tolist())
    return [(start, end, tiles.header.classes[kind]) for start, end, kind in zip(*columns, strict=True)]


def test_activity_covers_each_instant_once_and_separates_wait_from_transfer(tmp_path: Path) -> None:
    tiles = tiles_of(two_ranks(), tmp_path / "t")
    assert pieces(tiles, row(tiles, 0, ACTIVITY)) == [
        (0, 40, "forward"),
        (40, 60, "exposed_wait[fsdp]"),
        (60, 70, "exposed_transfer[fsdp]"),
        (70, 90, "backward"),
    ]
    assert pieces(tiles, row(tiles, 1, ACTIVITY)) == [(0, 60, "forward"), (60, 70, "exposed_transfer[fsdp]")]


def test_a_collective_and_its_stall_share_lane_and_instance(tmp_path: Path) -> None:
    tiles = tiles_of(two_ranks(), tmp_path / "t")
    lane = row(tiles, 0, "comm fsdp")
    spans = tiles.spans[lane.spans]
    assert spans["start_ns"].tolist() == [40, 40]
    assert spans["wait_ns"].tolist() == [20, 20]
    assert spans["depth"].tolist() == [0, 1]
    others = tiles.spans[row(tiles, 1, "comm fsdp").spans]
    assert spans["instance"].tolist() == others["instance"].tolist() == [0, 0]
    assert [tiles.header.groups[at].ranks for at in spans["group"]] == [(0, 1), (0, 1)]


def test_spans_of_many_lanes_at_the_time_of_day_stay_apart(tmp_path: Path) -> None:
    """All lanes of a rank are cut at once. Times since 1970 are so long that few of them fit into 64 bits."""
    now = 1_764_000_000_000_000_000
    called = build.collective(now + 50, now + 60)
    phases = (Phase.FORWARD, Phase.DATA_WAIT, Phase.CHECKPOINT_STALL, Phase.GC)
    records = [build.phase(of, now + 10 * at, now + 10 * at + 10, at=0) for at, of in enumerate(phases)]
    acted = build.action("F", now + 40, now + 50, stage=0, microbatch=0)
    rank = build.rank(0, build.step(0, now, now + 100), *records, acted, called, groups=[GROUP])
    tiles = tiles_of(build.timeline(rank), tmp_path / "t")
    assert {lane.lane: (pieces(tiles, lane), lane.lines) for lane in tiles.header.rows} == {
        "steps": ([(0, 100, "step")], 1),
        "compute": ([(0, 10, "forward")], 1),
        "data": ([(10, 20, "data_wait")], 1),
        "checkpoint": ([(20, 30, "checkpoint_stall")], 1),
        "host": ([(30, 40, "gc")], 1),
        "pipeline": ([(40, 50, "forward")], 1),
        "comm fsdp": ([(50, 60, "overlapped[fsdp]")], 1),
        "activity": (
            [
                (0, 10, "forward"),
                (10, 20, "data_wait"),
                (20, 30, "checkpoint_stall"),
                (30, 40, "gc"),
                (40, 50, "forward"),
            ],
            1,
        ),
    }


def test_an_open_span_lasts_until_its_ranks_last_instant(tmp_path: Path) -> None:
    hung = build.rank(0, build.phase(Phase.FORWARD, 0, 30), build.phase(Phase.BACKWARD, 30, OPEN), ending=None)
    tiles = tiles_of(build.timeline(hung), tmp_path / "t")
    spans = tiles.spans[row(tiles, 0, "compute").spans]
    assert spans["open"].tolist() == [0, 1]
    assert spans["end_ns"].tolist() == [30, 30]


def test_steps_last_from_earliest_begin_to_latest_end(tmp_path: Path) -> None:
    run = build.timeline(build.rank(0, build.step(4, 100, 200)), build.rank(1, build.step(4, 90, 180)))
    assert tiles_of(run, tmp_path / "t").header.steps == ((4, 0, 110),)


def test_a_window_of_few_spans_is_bars_with_separate_waits(tmp_path: Path) -> None:
    tiles = tiles_of(two_ranks(), tmp_path / "t")
    window = Window(begin_ns=35, end_ns=65, columns=10)
    result = zoom(tiles, [(row(tiles, 0, "comm fsdp"),)], window)
    assert isinstance(result, Bars)
    drawn = zip(
        result.start_ns.tolist(),
        result.end_ns.tolist(),
        result.class_number.tolist(),
        result.depth.tolist(),
        strict=True,
    )
    assert sorted(
        (start, end, tiles.header.classes[class_number], depth) for start, end, class_number, depth in drawn
    ) == [
        (40, 60, "exposed_wait[fsdp]", 1),
        (40, 70, "overlapped[fsdp]", 0),
        (60, 70, "exposed_transfer[fsdp]", 1),
    ]


def test_a_folded_line_is_the_mean_of_its_ranks(tmp_path: Path) -> None:
    tiles = tiles_of(two_ranks(), tmp_path / "t")
    both = [(row(tiles, 0, ACTIVITY), row(tiles, 1, ACTIVITY))]
    result = zoom(tiles, both, Window(begin_ns=0, end_ns=100, columns=5))
    assert isinstance(result, Raster)
    names = [tiles.header.classes[class_number] for class_number in result.classes]
    shares = {name: result.shares[0, at].tolist() for at, name in enumerate(names)}
    assert shares["forward"] == [1.0, 1.0, 0.5, 0.0, 0.0]
    assert shares["exposed_wait[fsdp]"] == [0.0, 0.0, 0.5, 0.0, 0.0]
    assert shares["exposed_transfer[fsdp]"] == [0.0, 0.0, 0.0, 0.5, 0.0]
    assert shares["backward"] == [0.0, 0.0, 0.0, 0.25, 0.25]


def test_levels_equal_the_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Window(begin_ns=0, end_ns=100, columns=5)
    plain = tiles_of(two_ranks(), tmp_path / "plain")
    monkeypatch.setattr(building, "COARSEST_BINS", 20)
    monkeypatch.setattr(building, "WINDOW_BINS", 10)
    monkeypatch.setattr(building, "MAX_PIECES", 8)
    stacked = tiles_of(two_ranks(), tmp_path / "stacked")
    assert [level.bins for level in stacked.header.levels] == [20, 80]
    for lines in ([(row(plain, 0, ACTIVITY),), (row(plain, 1, ACTIVITY),)], [tuple(plain.header.rows)]):
        rasters = [zoom(t, lines, whole, max_bars=-1) for t in (plain, stacked)]
        first, second = rasters
        assert isinstance(first, Raster)
        assert isinstance(second, Raster)
        assert (first.begin_ns, first.width_ns) == (second.begin_ns, second.width_ns) == (0, 20)
        np.testing.assert_allclose(first.shares, second.shares, atol=1 / 65535)


def test_only_large_runs_have_levels() -> None:
    assert levels(10**12, num_pieces=4_000_000) == ()
    assert [level.bins for level in levels(10**12, num_pieces=25_000_000)] == [1024, 4096]


def test_damaged_tiles_are_refused(tmp_path: Path) -> None:
    tiles_of(two_ranks(), tmp_path / "t")
    (tmp_path / "t" / HEADER_FILE).write_text(f'{{"version": {VERSION}, "rows": 3}}')
    with pytest.raises(RunDirectoryError, match="is damaged"):
        open_tiles(tmp_path / "t")
    with pytest.raises(RunDirectoryError, match="is missing"):
        open_tiles(tmp_path / "nowhere")


def test_what_a_killed_process_wrote_aside_is_removed_before_the_next_write(tmp_path: Path) -> None:
    """Tiles that another process still writes stay, until it finishes them and after."""
    kill = "import os, sys; from pathlib import Path; from traincope.tiles.storage import TilesWriter; "
    kill += "TilesWriter(Path(sys.argv[1])).append('spans', __import__('numpy').zeros(9)); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", kill, tmp_path / "t"]).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    other = TilesWriter(tmp_path / "other")
    assert not left.exists()
    tiles_of(two_ranks(), tmp_path / "t")
    other.finish(Header(origin_ns=0, length_ns=1))
    other.abandon()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "t"]
    assert not list(tmp_path.glob("*/writing.lock"))


def test_only_older_tiles_are_removed(tmp_path: Path) -> None:
    """Whatever folder the tiles are written into: directories of others stay."""
    (tmp_path / "rank-00000").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / HEADER_FILE).symlink_to(tmp_path / "removed")
    tiles_of(two_ranks(), tmp_path / "old")
    tiles_of(two_ranks(), tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "rank-00000"]
