"""`traincope.open_run`: a timeline with its verdict, document, tables and SQL."""

import json
import sys
from pathlib import Path

import pytest

import traincope
from traincope.errors import MissingDependencyError
from traincope.report.html.brief import brief
from traincope.report.sections.source import Source
from traincope.tables.views import VIEWS

SAMPLE = Path(__file__).parents[2] / "sample_runs" / "demo-3d"
EXPECTED = json.loads((SAMPLE / "expected.json").read_text())


@pytest.fixture(scope="module")
def run() -> traincope.OpenedRun:
    return traincope.open_run(SAMPLE)


def test_it_has_the_report_as_attributes(run: traincope.OpenedRun) -> None:
    assert json.loads(json.dumps(run.document)) == EXPECTED
    assert [finding.kind for finding in run.verdict] == [finding["kind"] for finding in EXPECTED["verdict"]]
    assert traincope.analyze(run).ledger.wall_ns == run.analysis.ledger.wall_ns == EXPECTED["ledger"]["wall_ns"]
    assert repr(run) == f"<run {SAMPLE}: 8 ranks, 6 steps>"


def test_tables_are_frames_of_pandas_polars_and_arrow(run: traincope.OpenedRun) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    steps = run.tables.steps
    counted = steps.to_pandas()
    assert isinstance(counted, pandas.DataFrame)
    assert int(counted[counted["counted"]]["wall_ns"].sum()) == EXPECTED["ledger"]["wall_ns"]
    frame = steps.to_polars()
    assert frame.filter(polars.col("counted"))["wall_ns"].sum() == EXPECTED["ledger"]["wall_ns"]
    assert steps.to_arrow().column_names == list(counted.columns) == frame.columns
    assert len(steps) == 8 * 6


def test_a_time_with_nulls_stays_exact_in_pandas(run: traincope.OpenedRun) -> None:
    """A float would lose the last 8 bits of ns since the epoch."""
    pytest.importorskip("pandas")
    table = run.tables.records
    ends = table.to_pandas()["end_ns"]
    exact = table.to_arrow()["end_ns"].to_pylist()
    assert [None if end is None else int(end) for end in ends.astype(object).where(ends.notna(), None)] == exact


def test_sql_answers_with_a_table(run: traincope.OpenedRun) -> None:
    answer = run.sql("select run, sum(ns) as ns from ledger where counted and term = 'forward' group by run")
    assert answer.to_arrow().to_pylist() == [{"run": "demo-3d", "ns": EXPECTED["ledger"]["terms"]["forward"]}]
    assert repr(answer) == "<table of 1 rows: run, ns>"


def test_the_tables_are_listed(run: traincope.OpenedRun) -> None:
    assert set(VIEWS) <= set(dir(run.tables))
    with pytest.raises(AttributeError, match="a run has no table 'step'; known are steps, ranks"):
        _ = run.tables.step


def test_a_missing_package_is_named(run: traincope.OpenedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingDependencyError, match="pip install polars"):
        run.tables.ranks.to_polars()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match="cannot make tables without pyarrow"):
        _ = traincope.open_run(SAMPLE).tables


def test_a_notebook_shows_the_verdict_and_the_waterfall(run: traincope.OpenedRun) -> None:
    html = run._repr_html_()
    assert html is not None
    assert html == brief(Source(analysis=run.analysis, document=run.document))
    for shown in ("exposed transfer", "confidence medium; saves at most 31.1 %", "mean step 2.14 s over 8 ranks"):
        assert shown in html
    assert ">exposed_wait[tp]<" in html
    assert "<script" not in html
    assert "<style" not in html
