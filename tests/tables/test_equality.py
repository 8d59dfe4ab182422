"""The tables contain the report's numbers: sums over their rows are values of its JSON."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from tests.analysis.windows import recorded, thin
from traincope.report.document.document import to_document, to_json
from traincope.tables.query import table_of
from traincope.tables.sources import Sources
from traincope.tables.views import VIEWS
from traincope.timeline import Timeline

ROOT = Path(__file__).parents[2] / "sample_runs"
SAMPLES = sorted(path.parent for path in ROOT.rglob("expected.json"))
QUICK = ("format-1", "restart", "llama3-405b", "faults/slow-rank", "faults/checkpoint-stuck")
"""Samples that `make test` compares; `make test-engine` compares all."""
Rows = list[dict[str, Any]]


@cache
def sources(sample: Path) -> Sources:
    return Sources.at(sample, name="sample")


def rows(of: Sources, name: str) -> Rows:
    return table_of([of], name).to_pylist()  # type: ignore[no-any-return]


def sums(table: Rows, keys: tuple[str, ...], value: Callable[[dict[str, Any]], int]) -> dict[Any, int]:
    result: dict[Any, int] = defaultdict(int)
    for row in table:
        result[tuple(row[key] for key in keys)] += value(row)
    return dict(result)


@pytest.mark.parametrize("name", QUICK)
def test_the_tables_of_a_sample_run_add_up_to_its_report(name: str) -> None:
    assert_of_sample(ROOT / name)


@pytest.mark.sweep
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tables_of_every_sample_run_add_up_to_its_report(sample: Path) -> None:
    assert_of_sample(sample)


def assert_of_sample(sample: Path) -> None:
    document = json.loads((sample / "expected.json").read_text())
    assert_equal(sources(sample), document)
    assert len(rows(sources(sample), "records")) == document["recorder"]["events"]


@pytest.fixture(scope="module")
def windows() -> Sources:
    """A run of which windows show the terms."""
    of_windows: Timeline = thin(recorded(), run_id="draw 1", halvings=2)
    return Sources(lambda: of_windows, name="windows")


def test_the_tables_of_a_sampled_run_add_up_to_its_report(windows: Sources) -> None:
    document = json.loads(to_json(to_document(windows.analysis)))
    assert document["ledger"]["timed_steps"] > document["ledger"]["ranks"][0]["steps"]
    assert_equal(windows, document)


def test_a_step_without_detail_only_has_the_terms_of_every_step(windows: Sources) -> None:
    light = [row for row in rows(windows, "ledger") if not row["detailed"] and row["timed"]]
    known = {row["term"] for row in light if row["ns"] is not None}
    assert known == {"data_wait", "checkpoint_stall", "gc"}
    timed = [row for row in rows(windows, "ledger") if row["timed"] and row["term"] == "data_wait"]
    assert sum(row["ns"] for row in timed) == sum(rank.known("data_wait")[0] for rank in windows.analysis.ledger.ranks)


def assert_equal(of: Sources, document: dict[str, Any]) -> None:
    steps, ledger, collectives = (rows(of, name) for name in ("steps", "ledger", "collectives"))
    assert_steps(steps, document)
    assert_ledger(ledger, steps, document)
    assert_collectives(collectives, document)
    assert_faults(rows(of, "faults"), document)
    assert_ranks(rows(of, "ranks"), document)
    assert_metrics(rows(of, "metrics"), document)


def assert_steps(steps: Rows, document: dict[str, Any]) -> None:
    run, counted = document["run"], [row for row in steps if row["counted"]]
    timed = [row for row in steps if row["timed"]]
    assert len({row["step"] for row in timed}) == run["steps"]
    assert (round(median(row["wall_ns"] for row in timed)) if timed else None) == run["step_ns"]
    assert (fmean(row["wall_ns"] for row in timed) if timed else None) == pytest.approx(run["mean_step_ns"])
    sampling = document["recorder"]["sampling"]
    assert len({row["step"] for row in timed if row["detailed"]}) == sampling["sampled_steps"]
    assert len({row["step"] for row in steps if row["guessed"]}) == run["guessed_steps"]
    ledger = document["ledger"]
    assert len(counted) == (0 if ledger is None else ledger["rank_steps"])
    if ledger is not None:
        assert sum(row["wall_ns"] for row in counted) == ledger["wall_ns"]
        assert {row["clock"] for row in steps} == {ledger["clock"]}
        assert max(Counter(row["rank"] for row in timed).values()) == ledger["timed_steps"]
    own_ns = sum(row["recorder_ns"] or 0 for row in steps)
    assert own_ns == round(1e9 * (document["recorder"]["overhead_seconds"] or 0))


def assert_ledger(table: Rows, steps: Rows, document: dict[str, Any]) -> None:
    counted = [row for row in table if row["counted"]]
    ledger = document["ledger"]
    if ledger is None:
        assert counted == []
        return
    known = sums([row for row in counted if row["ns"] is not None], ("term",), lambda row: row["ns"])
    assert {term: known.get((term,)) for term in ledger["terms"]} == ledger["terms"]
    of_ranks = sums([row for row in counted if row["ns"] is not None], ("rank", "term"), lambda row: row["ns"])
    for rank in ledger["ranks"]:
        if rank["steps"]:
            assert {term: of_ranks.get((rank["rank"], term)) for term in rank["terms"]} == rank["terms"]
    assert sum(row["ambiguous_ns"] or 0 for row in counted) == ledger["ambiguous_waits_ns"]
    of_steps = sums(counted, ("rank", "step"), lambda row: row["ns"] or 0)
    walls = {(row["rank"], row["step"]): row["wall_ns"] for row in steps if row["counted"]}
    assert of_steps == walls


def assert_collectives(table: Rows, document: dict[str, Any]) -> None:
    counted, of = [row for row in table if row["counted"]], ("axis", "operation")
    count, num_bytes = sums(counted, of, lambda _: 1), sums(counted, of, lambda row: row["bytes"] or 0)
    transfer_ns = sums(counted, of, lambda row: row["transfer_ns"])
    expected = {(row["axis"], row["op"]): row for row in document["comm"] or []}
    assert count == {key: row["count"] for key, row in expected.items()}
    assert num_bytes == {key: row["bytes"] or 0 for key, row in expected.items()}
    assert transfer_ns == {key: row["transfer_ns"] for key, row in expected.items()}
    assert all(row["detailed"] for row in counted)


def assert_faults(table: Rows, document: dict[str, Any]) -> None:
    same = ("kind", "mark", "at_ns", "ranks", "step", "what", "evidence", "confidence", "lasted_ns", "follows")
    names = (*same, "traceback")
    assert [{name: row[name] for name in names} for row in table] == [
        {name: fault[name] for name in names} for fault in document["faults"]
    ]


def assert_ranks(table: Rows, document: dict[str, Any]) -> None:
    by_rank = {row["rank"]: row for row in table}
    assert [row["rank"] for row in table if not row["recorded"]] == document["run"]["missing_ranks"]
    assert sum(row["dropped"] or 0 for row in table) == document["recorder"]["dropped"]
    assert sum(row["events"] or 0 for row in table) == document["recorder"]["events"]
    for rank in (document["ledger"] or {"ranks": []})["ranks"]:
        row = by_rank[rank["rank"]]
        assert (row["counted_steps"], row["wall_ns"]) == (rank["steps"], rank["wall_ns"])
    for rank in (document["stragglers"] or {"ranks": []})["ranks"]:
        row = by_rank[rank["rank"]]
        assert (row["compute_ns"], row["wait_ns"]) == (rank["compute_ns"], rank["own_wait_ns"])
        assert row["straggler_wait_ns"] == rank["straggler_wait_ns"]
    for clock in document["clock"]:
        row = by_rank[clock["rank"]]
        assert (row["clock_offset_ns"], row["clock_bound_ns"]) == (clock["offset_ns"], clock["bound_ns"])
        assert row["clock_drift_ppm"] == clock["drift_ppm"]


def assert_metrics(table: Rows, document: dict[str, Any]) -> None:
    of_memory = [row for row in table if row["source"] == "memory"]
    for use in document["memory"] or []:
        values = [row["value"] for row in of_memory if (row["rank"], row["name"]) == (use["rank"], use["measure"])]
        assert (values[-1], max(values)) == (use["last_bytes"], use["peak_bytes"])
    assert {(row["rank"], row["name"]) for row in of_memory} == {
        (use["rank"], use["measure"]) for use in document["memory"] or []
    }


@pytest.mark.parametrize("name", VIEWS)
def test_columns_that_have_no_null_have_none(name: str) -> None:
    table = table_of([sources(ROOT / sample) for sample in QUICK], name)
    assert table.num_rows or name == "nccl"  # tests/native/nccl_profiler has its rows
    for column in VIEWS[name].columns:
        assert column.nullable or table[column.name].null_count == 0, column.name


def test_spans_are_the_records_of_their_kinds() -> None:
    of = sources(ROOT / "format-1")
    kinds = ("phase", "action", "span", "stall")
    same = ("rank", "thread", "kind", "name", "phase", "axis", "start_ns", "end_ns", "duration_ns", "step")
    records = [row for row in rows(of, "records") if row["kind"] in kinds]
    spans = rows(of, "spans")
    assert [tuple(row[name] for name in same) for row in spans] == [
        tuple(row[name] for name in same) for row in records
    ]
    actions = [row for row in records if row["kind"] == "action"]
    assert actions
    assert [(row["stage"], row["microbatch"]) for row in spans if row["kind"] == "action"] == [
        (row["peer"], row["sequence"]) for row in actions
    ]
