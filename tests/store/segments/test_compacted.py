"""Compacted segments hold the same records, byte for byte, and are read like segments."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincope.analysis import analyze
from traincope.errors import MissingDependencyError, RunDirectoryError, VersionError
from traincope.events import OPEN, Kind, Phase
from traincope.report.document.document import to_document, to_json
from traincope.store import RECORD_DTYPE, SegmentRecords, read_run
from traincope.store.redaction import redact
from traincope.store.segments.compacted import COLUMNS, METADATA, is_thinned, read_compacted, write_compacted
from traincope.store.segments.segments import LIMIT, read_segment
from traincope.timeline import open_run

SAMPLES = Path(__file__).parents[3] / "sample_runs"


def compact_all(run: Path) -> int:
    """Compact every segment of the run; returns the total size of the new files."""
    size = 0
    for path in run.glob("attempt-*/rank-*/*.seg"):
        size += write_compacted(path.parent, read_segment(path)).stat().st_size
        path.unlink()
    return size


@st.composite
def segments(draw: Callable[..., object]) -> SegmentRecords:
    """Segments with anything the recorder can write: records in any order, closed or open."""
    count = draw(st.integers(0, 40))
    assert isinstance(count, int)
    records = np.zeros(count, dtype=RECORD_DTYPE)

    def column(strategy: st.SearchStrategy[int]) -> object:
        return draw(st.lists(strategy, min_size=count, max_size=count))

    records["start_ns"] = column(st.integers(0, LIMIT // 2 - 1))
    lengths = np.array(column(st.integers(-1, LIMIT // 2 - 1)), dtype=np.int64)
    records["end_ns"] = np.where(lengths == -1, OPEN, records["start_ns"] + lengths)
    records["value"] = column(st.integers(0, LIMIT - 1))
    for name in ("step", "peer", "tag"):
        records[name] = column(st.integers(-(2**31), 2**31 - 1))
    for name in ("name", "group", "sequence"):
        records[name] = column(st.integers(0, 2**32 - 1))
    records["flags"] = column(st.integers(0, 2**16 - 1))
    records["phase"] = column(st.integers(0, max(Phase)))
    records["kind"] = column(st.sampled_from([kind for kind in Kind if kind is not Kind.FLOPS]))
    return SegmentRecords(thread="thread-2", index=7, records=records, lost_bytes=0)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(segment=segments())
def test_every_field_of_every_record_comes_back(
    segment: SegmentRecords, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_compacted(tmp_path_factory.mktemp("compacted"), segment)
    assert path.name == "thread-2-00007.parquet"
    back = read_compacted(path)
    assert (back.thread, back.index, back.lost_bytes, back.garbled) == ("thread-2", 7, 0, 0)
    assert back.records.tobytes() == segment.records.tobytes()
    assert back.records.dtype == RECORD_DTYPE


@pytest.mark.parametrize("name", ["demo", "demo-3d"])
def test_a_compacted_run_reads_the_same_at_a_fifth_of_the_size(name: str, tmp_path: Path) -> None:
    run = tmp_path / name
    shutil.copytree(SAMPLES / name, run)
    before, text = read_run(run), to_json(to_document(analyze(open_run(run))))
    size, events = compact_all(run), sum(len(segment.records) for rank in before.ranks for segment in rank.segments)
    after = read_run(run)
    for original, copied in zip(before.ranks, after.ranks, strict=True):
        assert [s.records.tobytes() for s in copied.segments] == [s.records.tobytes() for s in original.segments]
        assert (copied.problems, copied.names, copied.details) == (original.problems, original.names, original.details)
    assert to_json(to_document(analyze(open_run(run)))) == text
    assert size / events < 56 / 3  # 400 to 3,000 records each, so that the headers of the files count


def test_an_event_of_a_full_segment_takes_at_most_eight_bytes(tmp_path: Path) -> None:
    """A full segment of different records: those of all ranks of two samples, one after the other."""
    ranks = [rank for name in ("demo", "demo-3d") for rank in read_run(SAMPLES / name).ranks]
    records = np.concatenate([segment.records for rank in ranks for segment in rank.segments])[:18_649]
    assert len(records) == 18_649
    path = write_compacted(tmp_path, SegmentRecords(thread="main", index=0, records=records, lost_bytes=0))
    assert path.stat().st_size / len(records) <= 8.0


def test_it_is_plain_parquet(tmp_path: Path) -> None:
    segment = read_segment(SAMPLES / "demo/attempt-000/rank-00000/main-00000.seg")
    table = parquet.read_table(write_compacted(tmp_path, segment))
    assert sorted(table.column_names) == sorted(COLUMNS)
    assert table.num_rows == len(segment.records)


def test_records_in_both_forms_count_once(tmp_path: Path) -> None:
    run = tmp_path / "demo"
    shutil.copytree(SAMPLES / "demo", run)
    before = [rank.thread("main").tobytes() for rank in read_run(run).ranks]
    for path in run.glob("attempt-*/rank-*/*.seg"):
        write_compacted(path.parent, read_segment(path))
    assert [rank.thread("main").tobytes() for rank in read_run(run).ranks] == before


def test_a_redacted_copy_holds_the_same_numbers(tmp_path: Path) -> None:
    run = tmp_path / "demo"
    shutil.copytree(SAMPLES / "demo", run)
    compact_all(run)
    redact(run, tmp_path / "copy")
    original, copied = read_run(run), read_run(tmp_path / "copy")
    assert [r.thread("main").tobytes() for r in copied.ranks] == [r.thread("main").tobytes() for r in original.ranks]


def test_damage_affects_only_that_file_and_is_reported(tmp_path: Path) -> None:
    run = tmp_path / "demo"
    shutil.copytree(SAMPLES / "demo", run)
    compact_all(run)
    path = run / "attempt-000/rank-00000/main-00000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    damaged, whole = read_run(run).ranks[:2]
    assert len(damaged.thread("main")) == 0
    assert f"{path} is damaged" in damaged.problems[0]
    assert len(whole.thread("main")) > 0


def test_another_parquet_file_and_a_newer_format_are_refused(tmp_path: Path) -> None:
    segment = SegmentRecords(thread="main", index=0, records=np.zeros(0, dtype=RECORD_DTYPE), lost_bytes=0)
    path = write_compacted(tmp_path, segment)
    table = parquet.read_table(path)
    parquet.write_table(table.replace_schema_metadata({METADATA: b'{"version": 99}'}), path)
    with pytest.raises(VersionError, match="format 99"):
        read_compacted(path)
    parquet.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(RunDirectoryError, match="not a compacted segment"):
        read_compacted(path)
    parquet.write_table(table.drop_columns(["kind"]), path)
    with pytest.raises(RunDirectoryError, match="damaged"):
        read_compacted(path)
    assert is_thinned(write_compacted(tmp_path, segment, thinned=True))


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'traincope\[view\]'"):
        read_compacted(tmp_path / "main-00000.parquet")
