"""A real Prometheus finds and scrapes a real training through its agent, and knows what the report knows."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.dashboards.queries import series_names, targets
from tests.distributed.pool import Pool
from tests.exporters.prometheus_server import Prometheus, prometheus, until
from tests.exporters.training import LATE_SECONDS, STEPS, train
from traincope import metrics
from traincope.analysis import analyze
from traincope.report import schema, to_document
from traincope.timeline import open_run
from traincope_dashboards.board import Look
from traincope_dashboards.build import dashboards
from traincope_dashboards.recorded import RECORDED
from traincope_exporters.telling import term_and_axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraped:
    """The training after its last step, still there; Prometheus has seen all of it."""

    prometheus: Prometheus
    report: schema.Document
    targets: Path


@pytest.fixture(scope="module")
def scraped(two_ranks: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("scraped")
    targets, stop, out = folder / "targets", folder / "stop", folder / "run"
    targets.mkdir()
    with prometheus(folder, targets=targets) as server:
        told = (train, str(out), str(stop), str(targets))
        training = threading.Thread(target=two_ranks.run, args=told, kwargs={"timeout_seconds": 150})
        training.start()
        try:
            expected = {("0",): STEPS, ("1",): STEPS}
            until(lambda: server.query(metrics.STEPS.prometheus) == expected, "all steps of both ranks")
            yield Scraped(prometheus=server, report=to_document(analyze(open_run(out))), targets=targets)
        finally:
            stop.touch()
            training.join()
        until(lambda: list(targets.iterdir()) == [], "the agent to end and take its target file with it")
        assert not list(out.glob("metrics-*.json"))


def test_every_steps_time_is_where_the_report_puts_it(scraped: Scraped) -> None:
    """By rank, term and axis, as floats of the same integers."""
    ledger = scraped.report["ledger"]
    assert ledger is not None
    for rank in ledger["ranks"]:
        own = f'{{rank="{rank["rank"]}"}}'
        sums: dict[tuple[str, str], int] = defaultdict(int)
        for term, ns in rank["terms"].items():
            sums[term_and_axis(term)] += ns or 0
        found = scraped.prometheus.query(f"{metrics.LEDGER.prometheus}{own}")
        labels = {key: tuple(filter(None, (key[1], str(rank["rank"]), key[0]))) for key, ns in sums.items() if ns}
        expected = {labels[key]: sums[key] / 1e9 for key in labels}
        assert found == pytest.approx(expected)
        assert scraped.prometheus.query(f"{metrics.WALL.prometheus}{own}") == pytest.approx(
            {(str(rank["rank"]),): rank["wall_ns"] / 1e9}
        )
    left = f"sum by (rank) ({metrics.LEDGER.prometheus}) - on (rank) {metrics.WALL.prometheus}"
    assert scraped.prometheus.query(left) == pytest.approx({("0",): 0.0, ("1",): 0.0}, abs=1e-9)


def test_what_is_said_of_collectives_is_what_the_report_says(scraped: Scraped) -> None:
    for row in scraped.report["comm"] or ():
        own = f'{{axis="{row["axis"]}",op="{row["op"]}"}}'
        labels = (row["axis"], row["op"])
        assert scraped.prometheus.query(f"{metrics.COLLECTIVE_BYTES.prometheus}{own}") == {labels: row["bytes"]}
        seconds = scraped.prometheus.query(f"{metrics.COLLECTIVE_WAIT.prometheus}{own}")
        assert seconds == pytest.approx({labels: row["wait_ns"] / 1e9}, rel=1e-6)


def test_the_rank_that_comes_late_is_seen_to_keep_the_other_waiting(scraped: Scraped) -> None:
    caused = scraped.prometheus.query(metrics.CAUSED_WAIT.prometheus)
    report = {(str(row["rank"]),): row["caused_wait_ns"] / 1e9 for row in scraped.report["stragglers"]["ranks"]}
    assert caused == pytest.approx(report, rel=1e-6)
    assert caused["1",] > (STEPS - 1) * LATE_SECONDS / 2 > caused["0",]


def test_the_rest_is_there_too(scraped: Scraped) -> None:
    query = scraped.prometheus.query
    assert query(metrics.LAST_STEP.prometheus) == {("0",): STEPS - 1, ("1",): STEPS - 1}
    assert query(metrics.RANKS.prometheus) == {("alive",): 2, ("ended",): 0, ("gone",): 0}
    assert query(metrics.TOKENS.prometheus) == {(): STEPS * 96}
    assert query(f"{metrics.STEP_TIMES.prometheus}_count") == {(): 2 * (STEPS - 1)}
    measures = {(measure, rank) for measure in ("resident", "peak resident") for rank in ("0", "1")}
    assert set(query(metrics.MEMORY.prometheus)) == measures
    assert set(query(metrics.LOGGED.prometheus)) == {("loss",)}
    for metric in (metrics.MFU, metrics.HFU, metrics.DATA_AGE, metrics.GOODPUT):
        assert query(f"{metric.prometheus} > 0"), metric.name


def test_an_example_leads_from_a_slow_bucket_to_a_step_and_its_rank(scraped: Scraped) -> None:
    until(lambda: bool(_examples(scraped)), "examples of step times")
    for example in _examples(scraped):
        assert int(example["labels"]["step"]) in range(1, STEPS)
        assert example["labels"]["rank"] in ("0", "1")


def _examples(scraped: Scraped) -> list[dict[str, dict[str, str]]]:
    expression = quote(f"{metrics.STEP_TIMES.prometheus}_bucket")
    found = scraped.prometheus.ask(f"query_exemplars?query={expression}&start=0&end=4102444800")
    return [example for series in found for example in series["exemplars"]]


def test_the_committed_rules_are_healthy_and_record_what_there_is(scraped: Scraped) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in scraped.prometheus.ask("rules")["groups"] for rule in group["rules"]]

    until(lambda: all(rule["health"] != "unknown" for rule in rules()), "a look at every rule")
    assert {rule["health"]: rule.get("lastError") for rule in rules()} == {"ok": None}
    recorded = {rule["name"]: rule["query"] for rule in rules() if rule["type"] == "recording"}
    assert set(recorded) == {rule.name for rule in RECORDED}
    there = {name for name, query in recorded.items() if not series_names(query) & NOT_IN_IT}
    until(lambda: all(scraped.prometheus.query(name) for name in there), "what is recorded")


NOT_IN_IT = {
    metric.prometheus
    for metric in metrics.CATALOGUE
    if metric.name.startswith(("gpu.", "bubble", "faults", "module.", "pipeline."))
}
"""A training of two processes on a CPU, without a pipeline, in which nothing goes wrong, at level 1."""


def test_every_panel_shows_something_of_what_there_is(scraped: Scraped) -> None:
    """Variables as Grafana fills them in; rates look back over the whole training."""
    until(lambda: bool(scraped.prometheus.query(f"rate({metrics.TOKENS.prometheus}[5m])")), "a second scrape")
    empty = []
    for dashboard in dashboards(Look(from_rules=False)).values():
        for target in targets(dashboard):
            expression = target.expression.replace('run="job-1"', 'run=~".+"').replace("[5s]", "[5m]")
            answer = scraped.prometheus.ask(f"query?query={quote(expression)}")["result"]
            if not answer and not series_names(expression) & NOT_IN_IT:
                empty.append(target.where)
    assert empty == []
