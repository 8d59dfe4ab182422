"""Ledger rows: complete lines, and an incomplete last line after a kill."""

from dataclasses import replace
from pathlib import Path

from traincope.store.layout import ROWS_FILE
from traincope.store.side_tables.rows import Row, append_rows, read_rows

FIRST = Row(
    rank=3,
    step=7,
    start_ns=1_700_000_000_000_000_000,
    wall_ns=100,
    own_ns=2,
    anomalous=False,
    terms={"forward": 60, "exposed_wait[fsdp]": 40},
)
SECOND = replace(FIRST, step=8, anomalous=True)


def test_written_rows_are_read_back(tmp_path: Path) -> None:
    append_rows(tmp_path, [FIRST])
    append_rows(tmp_path, [SECOND])
    assert read_rows(tmp_path, rank=3) == (FIRST, SECOND)
    assert (tmp_path / ROWS_FILE).read_text() == (
        '[7,1700000000000000000,100,2,0,{"forward":60,"exposed_wait[fsdp]":40}]\n'
        '[8,1700000000000000000,100,2,1,{"forward":60,"exposed_wait[fsdp]":40}]\n'
    )


def test_without_an_agent_there_are_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path, rank=0) == ()


def test_an_incomplete_line_is_ignored_and_removed_by_the_next_writer(tmp_path: Path) -> None:
    append_rows(tmp_path, [FIRST, SECOND])
    whole = (tmp_path / ROWS_FILE).read_bytes()
    for cut in range(1, len(whole) // 2):
        (tmp_path / ROWS_FILE).write_bytes(whole[:-cut])
        assert read_rows(tmp_path, rank=3) == (FIRST,)
    append_rows(tmp_path, [SECOND])
    assert (tmp_path / ROWS_FILE).read_bytes() == whole


def test_a_file_of_one_incomplete_line_starts_again(tmp_path: Path) -> None:
    (tmp_path / ROWS_FILE).write_bytes(b"[7,17")
    append_rows(tmp_path, [FIRST])
    assert read_rows(tmp_path, rank=3) == (FIRST,)


def test_duplicates_count_once_and_invalid_lines_are_left_out(tmp_path: Path) -> None:
    append_rows(tmp_path, [SECOND, FIRST])
    with (tmp_path / ROWS_FILE).open("ab") as file:
        file.write(b'\n{}\n[1]\n\xff\n[1,2,3,4,"0",{}]\n[1,2,3,4,0,{"forward":"60"}]\n[1,2,3,4,0,[5]]\n')
    append_rows(tmp_path, [FIRST])
    assert read_rows(tmp_path, rank=3) == (FIRST, SECOND)
