"""Columns of tables: names, formats, and one clear error for each wrong one."""

import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from tests.ingest.tables.jobs import Job, Row, table, write_csv
from traincope.errors import DataError, MissingDependencyError
from traincope.ingest.tables.reading import Table, read_table

JOB = Job(replicas=1, stages=2, microbatches=2, steps=(5,))
ISSUE_NAMES = {"start_ts": "start", "mb_id": "microbatch", "mc": "chunk"}


def columns(path: Path) -> dict[str, list[object]]:
    read = read_table(path)
    return {field.name: list(getattr(read, field.name)) for field in fields(Table) if field.name != "path"}


def test_csv_has_times_in_ns_and_no_microbatch_for_messages(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(
        "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,gmc,mb_id\n"
        "0,1,7,23,forward-compute,0.25,0.000000001,0,2,5,3\n"
        "0,1,7,23,forward-send,1.5,2,0,-1,-1,-1\n"
    )
    assert columns(path) == {
        "optype": ["forward-compute", "forward-send"],
        "dp_rank": [0, 0],
        "stage": [1, 1],
        "rank": [7, 7],
        "chunk": [2, 0],
        "step": [23, 23],
        "microbatch": [3, -1],
        "sequence": [0, 0],
        "start_ns": [250_000_000, 1_500_000_000],
        "end_ns": [250_000_001, 3_500_000_000],
    }


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_and_large_letters_are_the_same_table(separator: str, tmp_path: Path) -> None:
    plain, other = write_csv(tmp_path / "plain.csv", table(JOB)), tmp_path / "other.csv"
    head, _, rows = plain.read_text().replace(",", separator).partition("\n")
    other.write_text(f"{head.upper()}\n{rows}")
    assert columns(other) == columns(plain)


def test_both_sets_of_names_and_both_formats_are_the_same_table(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = table(JOB)
    published = columns(write_csv(tmp_path / "published.csv", rows))
    named = [{ISSUE_NAMES.get(name, name): value for name, value in row.items()} for row in rows]
    assert columns(write_csv(tmp_path / "named.csv", named)) == published
    typed = arrow.Table.from_pylist(rows)
    at = typed.column_names.index("optype")
    typed = typed.set_column(at, "optype", typed.column("optype").dictionary_encode())
    parquet.write_table(typed, tmp_path / "table.parquet")
    assert columns(tmp_path / "table.parquet") == published


def test_empty_fields_of_optional_values_have_their_defaults(tmp_path: Path) -> None:
    """Other programs write nothing, or nan, where a value does not apply."""
    rows = [{**row, **({"mc": "", "mb_id": "nan"} if row["mb_id"] == -1 else {})} for row in table(JOB)]
    whole = columns(write_csv(tmp_path / "whole.csv", table(JOB)))
    assert columns(write_csv(tmp_path / "empty.csv", rows)) == whole
    without = [{name: value for name, value in row.items() if name != "mc"} for row in table(JOB)]
    assert columns(write_csv(tmp_path / "without.csv", without)) == whole


def changed(name: str, value: object) -> list[Row]:
    """The table with another value in the first row, which is a gather, or in the first forward's microbatch."""
    rows = table(JOB)
    at = next(at for at, row in enumerate(rows) if name != "mb_id" or row["optype"] == "forward-compute")
    rows[at] = {**rows[at], name: value}
    return rows


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("start_ts", "soon", r"row 1 of .*table.csv has 'soon' as start, not a number"),
        ("duration", -1.0, "row 1 of .* has -1 as duration"),
        ("duration", "nan", "row 1 of .* has nan as duration"),
        ("start_ts", "inf", "row 1 of .* has inf as start"),
        ("start_ts", 1.7e12, "row 1 of .* has 1.7e.12 as start"),
        ("seq_id", "inf", "row 1 of .* has inf as seq_id"),
        ("step", 1.5, "row 1 of .* has 1.5 as step"),
        ("rank", -3, "row 1 of .* has -3 as rank"),
        ("stage", "", "row 1 of .* has nan as stage"),
        ("mb_id", -1, r"row \d+ of .* has -1 as microbatch"),
    ],
)
def test_a_wrong_value_is_named_with_its_row(tmp_path: Path, name: str, value: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_table(write_csv(tmp_path / "table.csv", changed(name, value)))


@pytest.mark.parametrize("name", ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "mb_id"])
def test_a_missing_column_is_named(tmp_path: Path, name: str) -> None:
    rows = [{key: value for key, value in row.items() if key != name} for row in table(JOB)]
    with pytest.raises(DataError, match=f"has no column {name}( or .*)?; its columns are"):
        read_table(write_csv(tmp_path / "table.csv", rows))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", b"", "is empty, so there is nothing to import"),
        ("other.csv", b"date,cause,count\n", "is neither a table of operations nor a logbook"),
        ("head.csv", b"dp_rank,stage,rank,step,optype,start,duration,microbatch\n", "contains no row"),
        ("short.csv", b"dp_rank,stage,rank,step,optype,start,duration,microbatch\n0,0,0\n", "row 1 .* has 3 fields"),
        ("binary.csv", b"\xff\xfe\x00", "cannot be read as CSV"),
        ("text.parquet", b"dp_rank,stage\n", "cannot be read as Parquet"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.csv does not exist"):
        read_table(tmp_path / "absent.csv")


def test_without_pyarrow_only_parquet_needs_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "table.parquet").write_bytes(b"")
    with pytest.raises(MissingDependencyError, match=r"without pyarrow: pip install 'traincope\[view\]'"):
        read_table(tmp_path / "table.parquet")
    assert np.all(read_table(write_csv(tmp_path / "table.csv", table(JOB))).step == 5)
