"""Reading of logbooks, and the lines that are refused."""

from pathlib import Path

import pytest

from traincope.errors import DataError
from traincope.store.logbook import is_logbook, read_logbook

HOUR_NS = 3_600_000_000_000
PERIOD = "kind,run,start,end,hours,ranks,step_seconds,cause,count,step,lost_steps,lost_hours\nperiod"
DATED = f"{PERIOD},,2022-01-01T00:00Z,2022-01-11T00:00Z,,8,10,,,,,\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "logbook.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_and_large_letters_are_the_same_logbook(separator: str, tmp_path: Path) -> None:
    head, _, rows = DATED.partition("\n")
    path = write(tmp_path, f"{head.upper()}\n{rows}".replace(",", separator))
    assert is_logbook(path)
    assert read_logbook(path) == read_logbook(write(tmp_path, DATED))


def test_the_rows_of_a_job(tmp_path: Path) -> None:
    book = read_logbook(
        write(
            tmp_path,
            f"{DATED}run,b,2022-01-02T12:00Z,2022-01-03T00:00Z,,,,,,,,\n"
            "run,a,2022-01-01T00:00Z,2022-01-01T18:00+06:00,,,,,,,,\n"
            "interruption,a,,,,,,gpu,,,6,\n"
            "interruption,,2022-01-05,,2.5,,,,3,,6,0.5\n"
            "progress,,2022-01-02,,,,,,,100,,\n"
            "note,,any text,,,,,,,,,\n",
        )
    )
    assert [(run.label, (run.end_ns - run.start_ns) // HOUR_NS) for run in book.runs] == [("a", 12), ("b", 12)]
    dated, undated = book.interruptions
    assert (dated.cause, dated.count, dated.to_the_day) == ("unknown", 3, True)
    assert (dated.down_ns, dated.lost_ns) == (2.5 * HOUR_NS, HOUR_NS / 2)
    assert (undated.label, undated.cause, undated.count, undated.lost_ns) == ("a", "gpu", 1, 60 * 10**9)
    assert [(each.step, each.to_the_day) for each in book.progress] == [(100, True)]
    assert (book.num_ranks, len(book.notes), book.elapsed_ns, book.complete) == (8, 1, 240 * HOUR_NS, True)


def test_a_period_without_dates_has_its_length(tmp_path: Path) -> None:
    book = read_logbook(write(tmp_path, f"{PERIOD},,,,1296,16384,,,,,,\n"))
    assert (book.start_ns, book.elapsed_ns, book.step_ns) == (None, 1296 * HOUR_NS, None)


WRONG = {
    "no period": ("kind,cause\n", "has 0 rows of kind period"),
    "two periods": (DATED + DATED.split("\n")[1], "has 2 rows of kind period"),
    "an unknown kind": (f"{DATED}outage,,,,,,,,,,,\n", "line 3: kind 'outage' is not one of period"),
    "no ranks": (f"{PERIOD},,,,24,,,,,,,\n", "line 2: ranks '' is missing or 0"),
    "no length": (f"{PERIOD},,2022-01-01,,,8,,,,,,\n", "line 2: hours '' is empty; a period needs start and end"),
    "an end before the start": (f"{PERIOD},,2022-01-02,2022-01-01,,8,,,,,,\n", "end '2022-01-01' is not after"),
    "a time without a zone": (f"{DATED}interruption,,2022-01-02T10:00,,,,,,,,,\n", "line 3: start .* has no time zone"),
    "no time": (f"{DATED}interruption,,last week,,,,,,,,,\n", "line 3: start 'last week' is not a time like"),
    "a number below zero": (f"{DATED}interruption,,,,-1,,,,,,,\n", "line 3: hours '-1' is not a number"),
    "not a number": (f"{DATED}interruption,,,,nan,,,,,,,\n", "line 3: hours 'nan' is not a number"),
    "half an interruption": (f"{DATED}interruption,,,,,,,gpu,0.5,,,\n", "count '0.5' is not a whole number"),
    "too many interruptions": (
        f"{DATED}interruption,,,,,,,gpu,600000,,,\ninterruption,,,,,,,gpu,600000,,,\n",
        "counts more than 1,000,000 interruptions",
    ),
    "no interruption": (f"{DATED}interruption,,,,,,,gpu,0,,,\n", "line 3: count '0' is 0"),
    "a cause of several words": (f"{DATED}interruption,,,,,,,GPU fault,,,,\n", "cause 'GPU fault' is not one word"),
    "a run without an end": (f"{DATED}run,a,2022-01-01,,,,,,,,,\n", "line 3: end '' is missing"),
    "a run outside": (f"{DATED}run,a,2022-01-10,2022-01-12,,,,,,,,\n", "run 'a' is not within the period"),
    "an interruption outside": (f"{DATED}interruption,,2022-02-01,,,,,gpu,,,,\n", "gpu, 2022-02-01. is not within"),
    "runs at once": (
        f"{DATED}run,a,2022-01-01,2022-01-03,,,,,,,,\nrun,b,2022-01-02,2022-01-04,,,,,,,,\n",
        "run 'b' starts before run 'a' ends",
    ),
    "one name for two runs": (
        f"{DATED}run,a,2022-01-01,2022-01-02,,,,,,,,\nrun,a,2022-01-02,2022-01-04,,,,,,,,\n",
        "two runs are called 'a'",
    ),
    "an unknown run": (
        f"{DATED}run,a,2022-01-01,2022-01-02,,,,,,,,\ninterruption,b,,,,,,gpu,,,,\n",
        "names the run 'b', which has no row",
    ),
    "steps that fall": (
        f"{DATED}progress,,2022-01-02,,,,,,,9,,\nprogress,,2022-01-03,,,,,,,8,,\n",
        "step 8 does not follow step 9",
    ),
    "times in a period without": (
        f"{PERIOD},,,,24,8,,,,,,\nrun,a,2022-01-01,2022-01-02,,,,,,,,\n",
        "has no start and end, but its runs or steps have times",
    ),
    "an unknown column": ("kind,cause,reason\n", "unknown column 'reason'"),
    "a missing column": ("kind,run\n", "lacks the column cause"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_logbook_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_logbook(write(tmp_path, text))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "logbook.csv"
    path.write_bytes(b"\xff\xfe\x00kind")
    with pytest.raises(DataError, match="cannot be read"):
        read_logbook(path)


def test_a_mark_before_the_first_head_is_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, f"\ufeff{DATED}")
    assert is_logbook(path)
    assert read_logbook(path).num_ranks == 8


def test_a_table_of_operations_is_no_logbook(tmp_path: Path) -> None:
    assert is_logbook(write(tmp_path, DATED))
    assert not is_logbook(write(tmp_path, "dp_rank,stage,rank,step,optype,start,duration\n"))
    assert not is_logbook(tmp_path / "absent.csv")
