"""`traincope sql` as a person types it."""

import csv
import json
import os
import sys
from io import StringIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.browser.awkward import HOSTILE, hostile
from traincope.cli.main import main

SAMPLES = Path(__file__).parents[3] / "sample_runs"
RUN = str(SAMPLES / "restart")
TERMS = "select term, sum(ns)::bigint as ns from ledger where counted group by term having sum(ns) > 0 order by ns desc"


def sql(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["sql", *words])
    assert end.value.code == 0, capsys.readouterr().err
    return capsys.readouterr().out


def terms() -> dict[str, int]:
    expected = json.loads((SAMPLES / "restart" / "expected.json").read_text())
    return {term: ns for term, ns in expected["ledger"]["terms"].items() if ns}


def test_text_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    head, first, *_, last = sql(capsys, RUN, TERMS).splitlines()
    assert head.split() == ["term", "ns"]
    assert first.split() == [max(terms(), key=terms().__getitem__), str(max(terms().values()))]
    assert last == f"{len(terms())} rows"


def test_json_csv_and_parquet_hold_the_same_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(sql(capsys, RUN, TERMS, "--format", "json"))
    assert {row["term"]: row["ns"] for row in rows} == terms()
    assert list(csv.DictReader(StringIO(sql(capsys, RUN, TERMS, "--format", "csv")))) == [
        {name: str(value) for name, value in row.items()} for row in rows
    ]
    target = tmp_path / "terms.parquet"
    assert sql(capsys, RUN, TERMS, "--format", "parquet", "-o", str(target)) == ""
    assert pq.read_table(target).to_pylist() == rows


def test_an_output_replaces_a_file_but_no_device_and_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "answer.csv"
    target.write_text("old")
    sql(capsys, RUN, "select 1 as a", "--format", "csv", "-o", str(target))
    assert target.read_text() == "a\n1\n"
    sql(capsys, RUN, "select 1 as a", "--format", "csv", "-o", "/dev/null")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(SystemExit, match="2"):
        main(["sql", RUN, "select 1 as a", "-o", str(tmp_path)])
    assert "give another file" in capsys.readouterr().err
    assert target.exists()


def test_several_runs_have_a_column_of_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    query = "select run, count(distinct rank) as ranks from steps group by run order by run"
    rows = json.loads(sql(capsys, RUN, str(SAMPLES / "faults" / "slow-rank"), query, "--format", "json"))
    assert rows == [{"run": "restart", "ranks": 2}, {"run": "slow-rank", "ranks": 2}]


def test_a_value_that_is_not_finite_stays_visible_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    query = "select distinct name, value from metrics where source = 'logged' and isnan(value)"
    rows = json.loads(sql(capsys, str(SAMPLES / "faults" / "nan-gradient"), query, "--format", "json"))
    assert rows
    assert {row["value"] for row in rows} == {"NaN"}


def test_names_of_a_run_cannot_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select distinct name from spans where kind = 'span'"
    shown = sql(capsys, str(hostile(tmp_path / "run")), query)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert f"{len(HOSTILE)} rows" in shown
    assert all(len(line) < 200 for line in shown.splitlines())


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_value_is_cut_on_a_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "select * from collectives order by start_ns limit 3"
    (first, *_) = json.loads(sql(capsys, RUN, query, "--format", "json"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = sql(capsys, RUN, query)
    assert all(len(line) <= columns for line in shown.splitlines())
    assert shown.endswith("3 rows\n")
    rows = dict(line.split() for line in shown.partition("row 2")[0].splitlines()[1:] if len(line.split()) == 2)
    numbers = {name: str(value) for name, value in first.items() if type(value) is int}
    assert {name: rows[name] for name in numbers} == numbers


def test_the_views_are_listed_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    shown = sql(capsys, "--views")
    assert "collectives  one row: one rank's part in one ended collective" in shown
    assert ["transfer_ns", "BIGINT", "ns"] in [line.split()[:3] for line in shown.splitlines()]
    views = json.loads(sql(capsys, RUN, "--views", "--format", "json"))
    assert [view["name"] for view in views][:3] == ["steps", "ranks", "ledger"]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ((), 2, "give one query, after the run directories if they are not the newest run; or --views"),
        ((RUN,), 2, "is a path; give the query as the last argument, in quotes"),
        ((RUN, RUN), 2, "is a path; give the query as the last argument, in quotes"),
        (("nowhere", "select 1"), 4, "nowhere does not exist"),
        ((RUN, "select * from step"), 2, "there is no view 'step'; did you mean steps?"),
        ((RUN, "select * from '/etc/passwd'"), 2, "there is no view '/etc/passwd'"),
        (("--views", "--format", "csv"), 2, "--views prints text or JSON"),
    ],
)
def test_a_mistake_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, sentence: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["sql", *words])
    message = capsys.readouterr().err
    assert (end.value.code, message.count("\n")) == (code, 1)
    assert sentence in message


def test_parquet_does_not_go_to_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _, terminal = os.openpty()
    with open(terminal, "w") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        with pytest.raises(SystemExit, match="2"):
            main(["sql", RUN, "select 1 as a", "--format", "parquet"])
    assert "Parquet is a file; give its name" in capsys.readouterr().err
