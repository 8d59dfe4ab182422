"""Real Prometheus that discovers and scrapes a real training through its agent, compared with the report."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.dashboards.queries import series_names, targets
from tests.distributed.ranks.pool import Pool
from tests.exporters.prometheus.prometheus_server import Prometheus, prometheus
from tests.exporters.training import LATE_SECONDS, STEPS, train
from tests.live.processes import until
from traincope.analysis import analyze
from traincope.events import HELD
from traincope.metrics import catalogue
from traincope.metrics.labels import term_and_axis
from traincope.report import schema
from traincope.report.document.document import to_document
from traincope.timeline import open_run
from traincope_dashboards import foreign
from traincope_dashboards.build import dashboards
from traincope_dashboards.panels.board import Look
from traincope_dashboards.rules.recorded import RECORDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraped:
    """Training after its last step, before its end. Prometheus has scraped all of it."""

    prometheus: Prometheus
    report: schema.Document
    targets: Path


@pytest.fixture(scope="module")
def scraped(two_ranks: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("scraped")
    targets, stop, out = folder / "targets", folder / "stop", folder / "run"
    targets.mkdir()
    with prometheus(folder, targets=targets) as server:
        arguments = (train, str(out), str(stop), str(targets))
        training = threading.Thread(target=two_ranks.run, args=arguments, kwargs={"timeout_seconds": 150})
        training.start()
        try:
            expected = {("0",): STEPS, ("1",): STEPS}
            until(lambda: server.query(catalogue.STEPS.prometheus) == expected, "all steps of both ranks")
            yield Scraped(prometheus=server, report=to_document(analyze(open_run(out))), targets=targets)
        finally:
            stop.touch()
            training.join()
        until(lambda: list(targets.iterdir()) == [], "the agent to end and take its target file with it")
        assert not list(out.glob("metrics-*.json"))


def test_ledger_metrics_equal_the_report(scraped: Scraped) -> None:
    """The sums by rank, term and axis are floats of the report's integers."""
    ledger = scraped.report["ledger"]
    assert ledger is not None
    for rank in ledger["ranks"]:
        selector = f'{{rank="{rank["rank"]}"}}'
        sums: dict[tuple[str, str], int] = defaultdict(int)
        for term, ns in rank["terms"].items():
            sums[term_and_axis(term)] += ns or 0
        result = scraped.prometheus.query(f"{catalogue.LEDGER.prometheus}{selector}")
        labels = {key: tuple(filter(None, (key[1], str(rank["rank"]), key[0]))) for key, ns in sums.items() if ns}
        expected = {labels[key]: sums[key] / 1e9 for key in labels}
        assert result == pytest.approx(expected)
        assert scraped.prometheus.query(f"{catalogue.WALL.prometheus}{selector}") == pytest.approx(
            {(str(rank["rank"]),): rank["wall_ns"] / 1e9}
        )
    left = f"sum by (rank) ({catalogue.LEDGER.prometheus}) - on (rank) {catalogue.WALL.prometheus}"
    assert scraped.prometheus.query(left) == pytest.approx({("0",): 0.0, ("1",): 0.0}, abs=1e-9)


def test_collective_metrics_equal_the_report(scraped: Scraped) -> None:
    for row in scraped.report["comm"] or ():
        selector = f'{{axis="{row["axis"]}",op="{row["op"]}"}}'
        labels = (row["axis"], row["op"])
        assert scraped.prometheus.query(f"{catalogue.COLLECTIVE_BYTES.prometheus}{selector}") == {labels: row["bytes"]}
        seconds = scraped.prometheus.query(f"{catalogue.COLLECTIVE_WAIT.prometheus}{selector}")
        assert seconds == pytest.approx({labels: row["wait_ns"] / 1e9}, rel=1e-6)


def test_a_late_rank_has_straggler_wait(scraped: Scraped) -> None:
    caused = scraped.prometheus.query(catalogue.STRAGGLER_WAIT.prometheus)
    report = {(str(row["rank"]),): row["straggler_wait_ns"] / 1e9 for row in scraped.report["stragglers"]["ranks"]}
    assert caused == pytest.approx(report, rel=1e-6)
    assert caused["1",] > (STEPS - 1) * LATE_SECONDS / 2 > caused["0",]


def test_all_other_metrics_have_their_values(scraped: Scraped) -> None:
    query = scraped.prometheus.query
    assert query(catalogue.LAST_STEP.prometheus) == {("0",): STEPS - 1, ("1",): STEPS - 1}
    assert query(catalogue.RANKS.prometheus) == {("alive",): 2, ("ended",): 0, ("gone",): 0}
    assert query(catalogue.TOKENS.prometheus) == {(): STEPS * 96}
    assert query(f"{catalogue.STEP_TIMES.prometheus}_count") == {(): 2 * (STEPS - 1)}
    measures = {(measure, rank) for measure in ("resident", "peak resident", *HELD) for rank in ("0", "1")}
    assert set(query(catalogue.MEMORY.prometheus)) == measures
    assert set(query(catalogue.LOGGED.prometheus)) == {("loss",)}
    for metric in (catalogue.MFU, catalogue.HFU, catalogue.DATA_AGE, catalogue.GOODPUT):
        assert query(f"{metric.prometheus} > 0"), metric.name


def test_an_exemplar_names_a_step_and_its_rank(scraped: Scraped) -> None:
    until(lambda: bool(_examples(scraped)), "exemplars of step times")
    for example in _examples(scraped):
        assert int(example["labels"]["step"]) in range(1, STEPS)
        assert example["labels"]["rank"] in ("0", "1")


def _examples(scraped: Scraped) -> list[dict[str, dict[str, str]]]:
    expression = quote(f"{catalogue.STEP_TIMES.prometheus}_bucket")
    result = scraped.prometheus.ask(f"query_exemplars?query={expression}&start=0&end=4102444800")
    return [example for series in result for example in series["exemplars"]]


def test_the_committed_rules_are_healthy_and_record_values(scraped: Scraped) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in scraped.prometheus.ask("rules")["groups"] for rule in group["rules"]]

    until(lambda: all(rule["health"] != "unknown" for rule in rules()), "an evaluation of every rule")
    assert {rule["health"]: rule.get("lastError") for rule in rules()} == {"ok": None}
    recorded = {rule["name"]: rule["query"] for rule in rules() if rule["type"] == "recording"}
    assert set(recorded) == {rule.name for rule in RECORDED}
    recordable = {
        name for name, query in recorded.items() if not series_names(query) & NOT_IN_IT and CHANGE not in query
    }
    until(lambda: all(scraped.prometheus.query(name) for name in recordable), "recorded series")


CHANGE = "delta("
"""Function of queries about the change of a gauge, which may have its last value at the first scrape of so short a
training. `tests/dashboards` asks them of a job that goes on."""
NOT_IN_IT = {
    metric.prometheus
    for metric in catalogue.CATALOGUE
    if metric.name.startswith(("gpu.", "bubble", "faults", "module.", "pipeline.", "ambiguous.", "run_ahead"))
    or metric.name in ("job.interruptions", "job.badput", "link.errors", "link.speed", "slot.width")
} | foreign.LABELS.keys()
"""Metrics that a training of two CPU processes at level 1 without pipeline, faults, restarts and other hosts lacks,
those of links without errors, ports that tell no speed and slots with all lanes, and those of other exporters.
"""


def test_every_panel_shows_data(scraped: Scraped) -> None:
    """Variables are filled in as Grafana does. Rates cover the whole training."""
    until(lambda: bool(scraped.prometheus.query(f"rate({catalogue.TOKENS.prometheus}[5m])")), "a second scrape")
    empty = []
    for dashboard in dashboards(Look(from_rules=False)).values():
        for target in targets(dashboard):
            expression = target.expression.replace('run="job-1"', 'run=~".+"').replace("[5s]", "[5m]")
            answer = scraped.prometheus.ask(f"query?query={quote(expression)}")["result"]
            if not answer and not series_names(expression) & NOT_IN_IT and CHANGE not in expression:
                empty.append(target.where)
    assert empty == []
