"""Rows of one hour become one row with the same sums."""

import gzip
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traincope.store.layout import OLD_ROWS_FILE, ROWS_FILE
from traincope.store.side_tables.row_thinning import HOUR_NS, PLAIN_ROWS, merged_row, thin_rows
from traincope.store.side_tables.rows import MergedSteps, Row, append_rows, line_of, read_rows

MS = 1_000_000
NOW_NS = 500_000 * HOUR_NS


def row(step: int, *, hours_ago: float, wall_ms: int = 60, wait_ms: int = 0, anomalous: bool = False) -> Row:
    terms = {"forward": (wall_ms - wait_ms) * MS, **({"exposed_wait[fsdp]": wait_ms * MS} if wait_ms else {})}
    return Row(
        rank=3,
        step=step,
        start_ns=NOW_NS - round(hours_ago * HOUR_NS),
        wall_ns=wall_ms * MS,
        own_ns=step,
        anomalous=anomalous,
        terms=terms,
    )


WARM_UP = row(0, hours_ago=52.5, wall_ms=9000)
FIRST_HOUR = [row(at, hours_ago=51.5, wall_ms=40 + 20 * at, wait_ms=10 * (at == 4)) for at in (1, 2, 4)]
ODD = row(3, hours_ago=51.5, wall_ms=700_000, anomalous=True)
SECOND_HOUR = [row(at, hours_ago=50.5) for at in (5, 6)]
KEPT = [row(7, hours_ago=48), row(8, hours_ago=1)]
ALL = [WARM_UP, *FIRST_HOUR[:2], ODD, FIRST_HOUR[2], *SECOND_HOUR, *KEPT]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    append_rows(tmp_path, ALL)
    return tmp_path


def test_rows_of_an_hour_merge_except_first_anomalous_and_recent(directory: Path) -> None:
    assert thin_rows(directory, rank=3) == 3
    hour = Row(
        rank=3,
        step=4,
        start_ns=FIRST_HOUR[0].start_ns,
        wall_ns=(60 + 80 + 120) * MS,
        own_ns=1 + 2 + 4,
        anomalous=False,
        terms={"forward": (60 + 80 + 110) * MS, "exposed_wait[fsdp]": 10 * MS},
        merged=MergedSteps(
            num_steps=3,
            lengths_ns={100 * MS: 2, 200 * MS: 1},
            quantiles_ns={
                "wall": (60 * MS, 80 * MS, 120 * MS, 120 * MS, 120 * MS),
                "forward": (60 * MS, 80 * MS, 110 * MS, 110 * MS, 110 * MS),
                "exposed_wait[fsdp]": (0, 0, 10 * MS, 10 * MS, 10 * MS),
            },
        ),
    )
    assert read_rows(directory, rank=3) == (WARM_UP, ODD, hour, merged_row(SECOND_HOUR), *KEPT)


def test_about_one_line_per_hour_remains(tmp_path: Path) -> None:
    merged = [row(at, hours_ago=100 - at / 720, wait_ms=at % 50) for at in range(20 * 720)]
    append_rows(tmp_path, [*merged, row(20 * 720, hours_ago=0)])
    before = (tmp_path / ROWS_FILE).stat().st_size
    assert thin_rows(tmp_path, rank=3) == 20 * 720 - 1 - 20
    assert (tmp_path / ROWS_FILE).stat().st_size < before / 100
    thinned = read_rows(tmp_path, rank=3)
    assert sum(entry.num_steps for entry in thinned) == 20 * 720 + 1
    assert (
        sum(entry.wall_ns for entry in thinned)
        == (20 * 720 + 1) * 60 * MS
        == sum(sum(entry.terms.values()) for entry in thinned)
    )


def test_thinning_again_merges_only_newly_old_hours(directory: Path) -> None:
    thin_rows(directory, rank=3)
    before = (directory / ROWS_FILE).read_bytes()
    assert thin_rows(directory, rank=3) == 0
    assert (directory / ROWS_FILE).read_bytes() == before
    later = [row(9, hours_ago=0.999), row(10, hours_ago=-48)]
    append_rows(directory, later)
    assert thin_rows(directory, rank=3) == 1
    assert read_rows(directory, rank=3)[-3:] == (KEPT[0], merged_row([KEPT[1], later[0]]), later[1])


def test_thinning_keeps_the_time_of_the_last_step(directory: Path) -> None:
    """`traincope ls` takes a hang for over if the rows are newer than its notice."""
    os.utime(directory / ROWS_FILE, ns=(10**18, 10**18))
    assert thin_rows(directory, rank=3) == 3
    assert (directory / ROWS_FILE).stat().st_mtime_ns == 10**18


def test_steps_beyond_all_bounds_count_below_the_longest() -> None:
    long = [row(1, hours_ago=60, wall_ms=201_000), row(2, hours_ago=60, wall_ms=300_000)]
    merged = merged_row(long).merged
    assert merged is not None
    assert merged.lengths_ns == {300_000 * MS: 2}


def test_thinning_drops_invalid_lines_and_duplicates(directory: Path) -> None:
    path = directory / ROWS_FILE
    path.write_bytes(b"garbage\n" + path.read_bytes() + b"[9,17")
    append_rows(directory, [FIRST_HOUR[0]])
    whole = path.read_bytes()
    assert whole.count(b"\n") == len(ALL) + 2
    thin_rows(directory, rank=3)
    thinned = read_rows(directory, rank=3)
    assert [(entry.step, entry.num_steps) for entry in thinned] == [(0, 1), (3, 1), (4, 3), (6, 2), (7, 1), (8, 1)]


def test_damaged_merged_lines_are_left_out(tmp_path: Path) -> None:
    append_rows(tmp_path, [replace(merged_row(SECOND_HOUR), merged=MergedSteps(num_steps=2, lengths_ns={}))])
    good = (tmp_path / ROWS_FILE).read_text()
    for bad in ('[["x",2]]', "[[1]]", "7", "null"):
        (tmp_path / ROWS_FILE).write_text(good.replace("[],{}", f"{bad},{{}}"))
        assert read_rows(tmp_path, rank=3) == ()
    (tmp_path / ROWS_FILE).write_text(good)
    assert len(read_rows(tmp_path, rank=3)) == 1


def test_older_rows_are_compressed_without_loss(tmp_path: Path) -> None:
    """A row of two days takes less than 88 bytes on disk: 50 GB for 16,384 ranks and steps of 5 s."""
    random = np.random.default_rng(7)
    terms = ("forward", "backward", "optimizer", "exposed_transfer[dp]", "exposed_wait[tp]", "unattributed")
    rows = []
    for step in range(5_000):
        values = (100 * MS * (0.5 + random.random(len(terms)))).astype(np.int64).tolist()
        own = dict(zip(terms, values, strict=True))
        rows.append(replace(row(step, hours_ago=10 - step / 720), wall_ns=sum(values), terms=own))
    append_rows(tmp_path, rows)
    assert thin_rows(tmp_path, rank=3) == 0
    assert read_rows(tmp_path, rank=3) == tuple(rows)
    assert (tmp_path / OLD_ROWS_FILE).stat().st_size < 88 * (5_000 - PLAIN_ROWS)
    assert (tmp_path / ROWS_FILE).read_bytes().count(b"\n") == PLAIN_ROWS


def test_a_kill_between_the_two_files_counts_no_row_twice(directory: Path) -> None:
    """The compressed file is new, and the other one is still that of before."""
    before = (directory / ROWS_FILE).read_bytes()
    thin_rows(directory, rank=3)
    thinned = read_rows(directory, rank=3)
    (directory / OLD_ROWS_FILE).write_bytes(gzip.compress(b"".join(map(line_of, thinned))))
    (directory / ROWS_FILE).write_bytes(before)
    assert read_rows(directory, rank=3) == thinned


def test_an_older_compressed_file_counts_no_row_twice(tmp_path: Path) -> None:
    """2 h of short steps fill the compressed file. Then long steps follow, and all rows fit into the plain one."""
    rows = [row(at, hours_ago=60 - at / 3600) for at in range(7200)]
    rows += [row(7200 + at, hours_ago=58 - at / 12, anomalous=at == 11) for at in range(12 * 58)]
    for first, last in ((0, 7200), (7200, 7260), (7260, 7560), (7560, len(rows))):
        append_rows(tmp_path, rows[first:last])
        before = (tmp_path / ROWS_FILE).read_bytes()
        thin_rows(tmp_path, rank=3)
        thinned = read_rows(tmp_path, rank=3)
        assert sum(entry.num_steps for entry in thinned) == last
        assert sum(entry.wall_ns for entry in thinned) == sum(entry.wall_ns for entry in rows[:last])
        whole = (tmp_path / ROWS_FILE).read_bytes()
        (tmp_path / ROWS_FILE).write_bytes(before)  # as after a kill between the two writes
        assert read_rows(tmp_path, rank=3) == thinned
        (tmp_path / ROWS_FILE).write_bytes(whole)


def test_a_compressed_file_that_is_cut_off_keeps_its_begin(tmp_path: Path) -> None:
    rows = [row(at, hours_ago=10 - at / 7200) for at in range(6 * PLAIN_ROWS)]
    append_rows(tmp_path, rows)
    thin_rows(tmp_path, rank=3)
    path = tmp_path / OLD_ROWS_FILE
    path.write_bytes(path.read_bytes()[:-100])
    left = read_rows(tmp_path, rank=3)
    assert left[-PLAIN_ROWS:] == tuple(rows[-PLAIN_ROWS:])
    assert left[:PLAIN_ROWS] == tuple(rows[:PLAIN_ROWS])
