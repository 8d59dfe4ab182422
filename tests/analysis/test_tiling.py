"""Tiles of runs made by hand: which span lies where, what of it was waiting, which share of each bin is whose."""

from pathlib import Path

import numpy as np
import pytest

from tests.timeline import build
from traincope.analysis import tiling
from traincope.analysis.lanes import ACTIVITY
from traincope.analysis.tiling import levels, write_tiles
from traincope.analysis.zoom import Bars, Raster, Window, zoom
from traincope.errors import RunDirectoryError
from traincope.events import OPEN, Phase
from traincope.store.tiles import HEADER_FILE, VERSION, Row, Tiles, TilesWriter, open_tiles
from traincope.timeline import Timeline, match_instances
from traincope.viewer.drawing import waiting

GROUP = build.group("fsdp", 0, 1, key="g")


def two_ranks() -> Timeline:
    """Rank 0 comes to the collective at 40, rank 1 at 60; both have it at 70: 10 are transfer, 20 waiting."""
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
    write_tiles(timeline, match_instances(timeline), TilesWriter(path))
    return open_tiles(path)


def row(tiles: Tiles, rank: int, lane: str) -> Row:
    (found,) = (one for one in tiles.header.rows if (one.rank, one.lane) == (rank, lane))
    return found


def pieces(tiles: Tiles, of: Row) -> list[tuple[int, int, str]]:
    own = of.pieces
    columns = (tiles.starts[own].tolist(), tiles.ends[own].tolist(), tiles.classes[own].tolist())
    return [(start, end, tiles.header.classes[kind]) for start, end, kind in zip(*columns, strict=True)]


def test_the_activity_of_a_rank_is_its_time_each_instant_once_waiting_apart_from_transfer(tmp_path: Path) -> None:
    tiles = tiles_of(two_ranks(), tmp_path / "t")
    assert pieces(tiles, row(tiles, 0, ACTIVITY)) == [
        (0, 40, "forward"),
        (40, 60, "exposed_wait[fsdp]"),
        (60, 70, "exposed_transfer[fsdp]"),
        (70, 90, "backward"),
    ]
    assert pieces(tiles, row(tiles, 1, ACTIVITY)) == [(0, 60, "forward"), (60, 70, "exposed_transfer[fsdp]")]


def test_a_collective_and_the_stall_in_it_share_a_lane_and_know_their_instance(tmp_path: Path) -> None:
    tiles = tiles_of(two_ranks(), tmp_path / "t")
    lane = row(tiles, 0, "comm fsdp")
    spans = tiles.spans[lane.spans]
    assert spans["start_ns"].tolist() == [40, 40]
    assert spans["wait_ns"].tolist() == [20, 20]
    assert spans["depth"].tolist() == [0, 1]
    others = tiles.spans[row(tiles, 1, "comm fsdp").spans]
    assert spans["instance"].tolist() == others["instance"].tolist() == [0, 0]
    assert [tiles.header.groups[at].ranks for at in spans["group"]] == [(0, 1), (0, 1)]


def test_a_span_that_was_left_open_reaches_to_the_last_instant_of_its_rank(tmp_path: Path) -> None:
    hung = build.rank(0, build.phase(Phase.FORWARD, 0, 30), build.phase(Phase.BACKWARD, 30, OPEN), ending=None)
    tiles = tiles_of(build.timeline(hung), tmp_path / "t")
    spans = tiles.spans[row(tiles, 0, "compute").spans]
    assert spans["open"].tolist() == [0, 1]
    assert spans["end_ns"].tolist() == [30, 30]


def test_steps_are_told_from_their_earliest_begin_to_their_latest_end(tmp_path: Path) -> None:
    run = build.timeline(build.rank(0, build.step(4, 100, 200)), build.rank(1, build.step(4, 90, 180)))
    assert tiles_of(run, tmp_path / "t").header.steps == ((4, 0, 110),)


def test_a_window_of_few_spans_is_bars_with_the_waiting_drawn_apart(tmp_path: Path) -> None:
    tiles = tiles_of(two_ranks(), tmp_path / "t")
    window = Window(begin_ns=35, end_ns=65, columns=10)
    found = zoom(tiles, [(row(tiles, 0, "comm fsdp"),)], window, waiting=waiting(tiles.header.classes))
    assert isinstance(found, Bars)
    drawn = zip(found.start_ns.tolist(), found.end_ns.tolist(), found.of.tolist(), found.depth.tolist(), strict=True)
    assert sorted((start, end, tiles.header.classes[of], depth) for start, end, of, depth in drawn) == [
        (40, 60, "exposed_wait[fsdp]", 1),
        (40, 70, "overlapped[fsdp]", 0),
        (60, 70, "exposed_transfer[fsdp]", 1),
    ]


def test_a_raster_of_two_ranks_folded_into_one_line_is_their_mean(tmp_path: Path) -> None:
    tiles = tiles_of(two_ranks(), tmp_path / "t")
    both = [(row(tiles, 0, ACTIVITY), row(tiles, 1, ACTIVITY))]
    found = zoom(tiles, both, Window(begin_ns=0, end_ns=100, columns=5), waiting=waiting(tiles.header.classes))
    assert isinstance(found, Raster)
    names = [tiles.header.classes[of] for of in found.classes]
    shares = {name: found.shares[0, at].tolist() for at, name in enumerate(names)}
    assert shares["forward"] == [1.0, 1.0, 0.5, 0.0, 0.0]
    assert shares["exposed_wait[fsdp]"] == [0.0, 0.0, 0.5, 0.0, 0.0]
    assert shares["exposed_transfer[fsdp]"] == [0.0, 0.0, 0.0, 0.5, 0.0]
    assert shares["backward"] == [0.0, 0.0, 0.0, 0.25, 0.25]


def test_the_pyramid_says_what_the_pieces_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Window(begin_ns=0, end_ns=100, columns=5)
    plain = tiles_of(two_ranks(), tmp_path / "plain")
    monkeypatch.setattr(tiling, "COARSEST_BINS", 20)
    monkeypatch.setattr(tiling, "WINDOW_BINS", 10)
    monkeypatch.setattr(tiling, "MOST_PIECES", 8)
    stacked = tiles_of(two_ranks(), tmp_path / "stacked")
    assert [level.bins for level in stacked.header.levels] == [20, 80]
    for lines in ([(row(plain, 0, ACTIVITY),), (row(plain, 1, ACTIVITY),)], [tuple(plain.header.rows)]):
        rasters = [zoom(t, lines, whole, waiting=waiting(t.header.classes), most_bars=-1) for t in (plain, stacked)]
        first, second = rasters
        assert isinstance(first, Raster)
        assert isinstance(second, Raster)
        assert (first.begin_ns, first.width_ns) == (second.begin_ns, second.width_ns) == (0, 20)
        np.testing.assert_allclose(first.shares, second.shares, atol=1 / 65535)


def test_small_runs_need_no_pyramid_and_large_ones_levels_until_windows_are_small() -> None:
    assert levels(10**12, num_pieces=4_000_000) == ()
    assert [level.bins for level in levels(10**12, num_pieces=25_000_000)] == [1024, 4096]


def test_damaged_tiles_are_refused_in_words(tmp_path: Path) -> None:
    tiles_of(two_ranks(), tmp_path / "t")
    (tmp_path / "t" / HEADER_FILE).write_text(f'{{"version": {VERSION}, "rows": 3}}')
    with pytest.raises(RunDirectoryError, match="is damaged"):
        open_tiles(tmp_path / "t")
    with pytest.raises(RunDirectoryError, match="is missing"):
        open_tiles(tmp_path / "nowhere")
