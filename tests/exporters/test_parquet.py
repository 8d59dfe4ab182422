"""Parquet: each event is one row."""

import json
import re
import shutil
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.exporters.runs import event, memory, two_ranks
from tests.timeline.build import Row, action, timeline
from traincope import open_run
from traincope.errors import RunDirectoryError
from traincope.events import NO_PEER, NO_STEP, OPEN, Kind, Phase
from traincope.tables import records
from traincope.timeline import RankTimeline, Timeline, each_rank
from traincope_exporters.parquet import write_parquet, write_parquet_of_ranks


def rows(timeline: Timeline, directory: Path) -> list[dict[str, Any]]:
    write_parquet(timeline, directory)
    return list(pq.read_table(directory).to_pylist())


def test_a_collective_is_a_row_with_its_names(tmp_path: Path) -> None:
    (row, _) = [row for row in rows(two_ranks(), tmp_path) if row["kind"] == "collective" and row["step"] == 1]
    assert row == {
        "rank": 0,
        "thread": "main",
        "kind": "collective",
        "name": "all_gather",
        "axis": "tp",
        "step": 1,
        "start_ns": 1400,
        "end_ns": 1700,
        "duration_ns": 300,
        "sequence": 1,
        "window": 0,
        "value": 4096,
        "flags": 0,
        "tag": 0,
        "group": "tp:(0, 1)",
        "peer": None,
        "phase": None,
        "schedule": None,
        "scalar": None,
        "details": None,
    }


def test_missing_values_are_null(tmp_path: Path) -> None:
    hanging = Row(kind=Kind.SPAN, start_ns=2800, end_ns=OPEN, name="endless")
    result = {row["name"]: row for row in rows(two_ranks(hanging, event("mine", 2900, at=2)), tmp_path)}
    assert (result["endless"]["end_ns"], result["endless"]["duration_ns"], result["endless"]["step"]) == (None,) * 3
    assert (result["mine"]["duration_ns"], result["mine"]["value"], result["mine"]["sequence"]) == (None,) * 3


def test_actions_memory_and_logged_values_have_their_columns(tmp_path: Path) -> None:
    loss = Row(kind=Kind.SCALAR, start_ns=2990, end_ns=2990, name="loss", step=2, value=int(np.float64(2.5).view("i8")))
    more = (action("F", 2800, 2900, stage=3, microbatch=7, at=2), memory(2950, 77), loss)
    result = {row["name"]: row for row in rows(two_ranks(*more), tmp_path)}
    assert (result["F"]["schedule"], result["F"]["peer"], result["F"]["sequence"]) == ("Schedule", 3, 7)
    assert (result["resident"]["value"], result["loss"]["scalar"], result["loss"]["value"]) == (77, 2.5, None)


def test_ranks_are_directories_that_queries_can_filter(tmp_path: Path) -> None:
    write_parquet(two_ranks(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank=0", "rank=1"]
    only = pq.read_table(tmp_path, filters=[("rank", "=", 1), ("kind", "=", "stall")])
    assert pc.sum(only["duration_ns"]).as_py() == 200


def test_the_demo_is_read_back_without_loss(tmp_path: Path) -> None:
    timeline = open_run("sample_runs/demo")
    write_parquet(timeline, tmp_path)
    for rank in timeline.ranks:
        table = pq.read_table(tmp_path / f"rank={rank.rank}" / "records.parquet")
        assert_same(rank, table.to_pydict())


def assert_same(rank: RankTimeline, columns: dict[str, list[Any]]) -> None:
    records = rank.main
    assert columns["start_ns"] == records["start_ns"].tolist()
    assert [OPEN if end is None else end for end in columns["end_ns"]] == records["end_ns"].tolist()
    assert [NO_STEP if step is None else step for step in columns["step"]] == records["step"].tolist()
    assert [Kind[kind.upper()] for kind in columns["kind"]] == records["kind"].tolist()
    assert [Phase[(phase or "none").upper()] for phase in columns["phase"]] == records["phase"].tolist()
    assert columns["flags"] == records["flags"].tolist()
    called = np.isin(records["kind"], (Kind.COLLECTIVE, Kind.STALL))
    for row in np.flatnonzero(called).tolist():
        record = records[row]
        assert columns["name"][row] == rank.name(int(record["name"]))
        assert columns["axis"][row] == rank.axis(int(record["group"]))
        assert columns["value"][row] == record["value"]
        assert columns["sequence"][row] == record["sequence"]
        assert columns["window"][row] == record["window"]
        assert (NO_PEER if columns["peer"][row] is None else columns["peer"][row]) == record["peer"]
    for row in np.flatnonzero(records["kind"] == Kind.SCALAR).tolist():
        assert np.float64(columns["scalar"][row]).view("i8") == records["value"][row]


def test_rank_by_rank_the_files_are_the_same(tmp_path: Path) -> None:
    """Ranks on two hosts, whose clocks differ: their axis follows from the collectives of all ranks."""
    run = Path(shutil.copytree("sample_runs/demo", tmp_path / "run"))
    for card in run.glob("attempt-*/rank-0000[13]/rank.json"):
        card.write_text(json.dumps({**json.loads(card.read_text()), "host": "other", "boot_id": "other"}))
    (whole := tmp_path / "whole").mkdir()
    (pieces := tmp_path / "pieces").mkdir()
    timeline = open_run(run)
    assert {clock.source.value for clock in timeline.clocks} == {"same host", "messages"}
    write_parquet(timeline, whole)
    write_parquet_of_ranks(run, pieces)
    files = [path.relative_to(whole) for path in sorted(whole.rglob("*.parquet"))]
    assert len(files) == len(timeline.ranks) > 1
    assert [(whole / file).read_bytes() for file in files] == [(pieces / file).read_bytes() for file in files]


def test_rank_by_rank_one_rank_is_held() -> None:
    """The records of a rank are gone before those of the next one are read."""
    seen: list[weakref.ref[Any]] = []
    ranks = each_rank("sample_runs/demo")
    for rank, _ in ranks:
        assert [each() for each in seen] == [None] * len(seen)
        seen.append(weakref.ref(rank.main))
        del rank, _
    assert len(seen) == 4


def test_a_run_without_events_is_refused_rank_by_rank_too(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no rec"):
        write_parquet_of_ranks(Path("sample_runs/opt-175b"), tmp_path)


def test_row_groups_do_not_change_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole := tmp_path / "whole").mkdir()
    (pieces := tmp_path / "pieces").mkdir()
    write_parquet(open_run("sample_runs/demo"), whole)
    monkeypatch.setattr(records, "ROWS_PER_PART", 1000)
    write_parquet(open_run("sample_runs/demo"), pieces)
    assert pq.ParquetFile(pieces / "rank=0" / "records.parquet").num_row_groups == 4
    assert pq.read_table(pieces).to_pylist() == pq.read_table(whole).to_pylist()


def test_the_export_is_deterministic(tmp_path: Path) -> None:
    files = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        write_parquet(open_run("sample_runs/demo"), tmp_path / name)
        files.append([path.read_bytes() for path in sorted((tmp_path / name).rglob("*.parquet"))])
    assert files[0] == files[1]


def test_a_name_that_is_not_unicode_is_replaced(tmp_path: Path) -> None:
    result = rows(two_ranks(event("half \ud800", 2900, at=2)), tmp_path)
    assert [row["name"] for row in result if row["kind"] == "event"] == ["half ?"]
    assert [row["details"] for row in result if row["kind"] == "event"] == [None]


def test_a_lost_name_is_null(tmp_path: Path) -> None:
    whole = two_ranks()
    lost = replace(whole, ranks=tuple(replace(rank, names=rank.names[:-1], groups=()) for rank in whole.ranks))
    gathers = [row for row in rows(lost, tmp_path) if row["kind"] == "collective"]
    assert [(row["name"], row["axis"], row["value"]) for row in gathers] == 4 * [(None, None, 4096)]


def test_a_run_without_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no records"):
        write_parquet(timeline(), tmp_path)


def test_the_documented_query_of_duckdb_reads_the_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of docs/operate/scale.md: in each of two steps both ranks stall on tp."""
    duckdb = pytest.importorskip("duckdb")
    page = (Path(__file__).parents[2] / "docs" / "operate" / "scale.md").read_text()
    (query,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN.parquet").mkdir()
    run = two_ranks()
    stalls = [row for row in rows(run, tmp_path / "RUN.parquet") if (row["kind"], row["axis"]) == ("stall", "tp")]
    expected: dict[tuple[int, int], float] = {}
    for row in stalls:
        expected[row["rank"], row["step"]] = expected.get((row["rank"], row["step"]), 0) + row["duration_ns"] / 1e6
    assert expected
    found = duckdb.sql(query).fetchall()
    assert {(rank, step): ms for rank, step, ms in found} == pytest.approx(expected)
    assert [ms for _, _, ms in found] == sorted(expected.values(), reverse=True)
