"""Rows of an hour become one that says the same of them all together."""

from dataclasses import replace
from pathlib import Path

import pytest

from traincope.store.layout import ROWS_FILE
from traincope.store.rows import Many, Row, append_rows, read_rows
from traincope.store.thinning import HOUR_NS, summed, thin_rows

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


def test_those_of_an_hour_become_one_and_the_first_the_odd_and_the_young_stay(directory: Path) -> None:
    assert thin_rows(directory, rank=3) == 3
    hour = Row(
        rank=3,
        step=4,
        start_ns=FIRST_HOUR[0].start_ns,
        wall_ns=(60 + 80 + 120) * MS,
        own_ns=1 + 2 + 4,
        anomalous=False,
        terms={"forward": (60 + 80 + 110) * MS, "exposed_wait[fsdp]": 10 * MS},
        many=Many(
            num_steps=3,
            lengths_ns={100 * MS: 2, 200 * MS: 1},
            quantiles_ns={
                "wall": (60 * MS, 80 * MS, 120 * MS, 120 * MS, 120 * MS),
                "forward": (60 * MS, 80 * MS, 110 * MS, 110 * MS, 110 * MS),
                "exposed_wait[fsdp]": (0, 0, 10 * MS, 10 * MS, 10 * MS),
            },
        ),
    )
    assert read_rows(directory, rank=3) == (WARM_UP, ODD, hour, summed(SECOND_HOUR), *KEPT)


def test_it_is_about_one_line_an_hour(tmp_path: Path) -> None:
    many = [row(at, hours_ago=100 - at / 720, wait_ms=at % 50) for at in range(20 * 720)]
    append_rows(tmp_path, [*many, row(20 * 720, hours_ago=0)])
    before = (tmp_path / ROWS_FILE).stat().st_size
    assert thin_rows(tmp_path, rank=3) == 20 * 720 - 1 - 20
    assert (tmp_path / ROWS_FILE).stat().st_size < before / 100
    found = read_rows(tmp_path, rank=3)
    assert sum(one.num_steps for one in found) == 20 * 720 + 1
    assert (
        sum(one.wall_ns for one in found) == (20 * 720 + 1) * 60 * MS == sum(sum(one.terms.values()) for one in found)
    )


def test_a_second_time_only_hours_that_have_grown_old_since_are_added(directory: Path) -> None:
    thin_rows(directory, rank=3)
    before = (directory / ROWS_FILE).read_bytes()
    assert thin_rows(directory, rank=3) == 0
    assert (directory / ROWS_FILE).read_bytes() == before
    later = [row(9, hours_ago=0.999), row(10, hours_ago=-48)]
    append_rows(directory, later)
    assert thin_rows(directory, rank=3) == 1
    assert read_rows(directory, rank=3)[-3:] == (KEPT[0], summed([KEPT[1], later[0]]), later[1])


def test_steps_longer_than_all_bounds_are_below_the_longest() -> None:
    long = [row(1, hours_ago=60, wall_ms=201_000), row(2, hours_ago=60, wall_ms=300_000)]
    many = summed(long).many
    assert many is not None
    assert many.lengths_ns == {300_000 * MS: 2}


def test_what_is_no_row_goes_and_what_is_there_twice_counts_once(directory: Path) -> None:
    path = directory / ROWS_FILE
    path.write_bytes(b"garbage\n" + path.read_bytes() + b"[9,17")
    append_rows(directory, [FIRST_HOUR[0]])
    whole = path.read_bytes()
    assert whole.count(b"\n") == len(ALL) + 2
    thin_rows(directory, rank=3)
    found = read_rows(directory, rank=3)
    assert [(one.step, one.num_steps) for one in found] == [(0, 1), (3, 1), (4, 3), (6, 2), (7, 1), (8, 1)]


def test_garbled_lines_of_several_are_no_rows(tmp_path: Path) -> None:
    append_rows(tmp_path, [replace(summed(SECOND_HOUR), many=Many(num_steps=2, lengths_ns={}))])
    good = (tmp_path / ROWS_FILE).read_text()
    for bad in ('[["x",2]]', "[[1]]", "7", "null"):
        (tmp_path / ROWS_FILE).write_text(good.replace("[],{}", f"{bad},{{}}"))
        assert read_rows(tmp_path, rank=3) == ()
    (tmp_path / ROWS_FILE).write_text(good)
    assert len(read_rows(tmp_path, rank=3)) == 1
