"""A real Prometheus scrapes every metric of the catalogue: all queries have results, and alerts arrive."""

import json
import re

import pytest

from tests.dashboards.conftest import Stack
from tests.dashboards.queries import Target, filled_in, targets
from traincope.metrics.catalogue import STEP_TIMES
from traincope_dashboards.boards import ledger
from traincope_dashboards.build import dashboards
from traincope_dashboards.panels.board import Look
from traincope_dashboards.panels.panels import STEP
from traincope_dashboards.panels.variables import make_scopes
from traincope_dashboards.rules.recorded import GOODPUT_DAY, GOODPUT_HOUR, RECORDED
from traincope_dashboards.scope import Recorded


@pytest.fixture(autouse=True)
def _two_scrapes_ago(stack: Stack) -> None:
    """Wait for two scrapes; rates need two, and recorded rules one more evaluation."""
    for rule in RECORDED:
        stack.prometheus.wait_for(rule.name)


def named(series: dict[str, str]) -> set[str]:
    """Labels of a series. Prometheus drops empty labels, such as a ledger term's axis."""
    return series.keys() | ({"axis"} if series.get("term") in ("forward", "data_wait") else set())


def labels_shown(target: Target) -> set[str]:
    """Labels that a legend, a table's columns or a point's link show."""
    labels = set(re.findall(r"\{\{(\w+)\}\}", target.legend))
    links = json.dumps(target.panel["fieldConfig"]["defaults"]) if "fieldConfig" in target.panel else ""
    linked = set(re.findall(r"__field\.labels\.(\w+)", links)) if target.legend != STEP else set()
    columns = {
        name
        for transformation in target.panel.get("transformations", ())
        for name in transformation["options"].get("indexByName", ())
        if not name.startswith("Value")
    }
    return labels | linked | columns


@pytest.mark.parametrize("from_rules", [False, True], ids=["asked anew", "as recorded"])
def test_every_panel_has_data_with_the_labels_of_its_legend(stack: Stack, from_rules: bool) -> None:
    empty, unnamed = [], []
    for dashboard in dashboards(Look(from_rules=from_rules)).values():
        for target in targets(dashboard):
            series = stack.prometheus.query(target.expression)
            if not series:
                empty.append(target.where)
            if any(labels_shown(target) - named(row["metric"]) for row in series):
                unnamed.append(target.where)
    assert (empty, unnamed) == ([], [])


def test_every_variable_has_values(stack: Stack) -> None:
    for dashboard in dashboards(Look()).values():
        for variable in json.loads(dashboard)["templating"]["list"]:
            if variable["type"] != "query":
                continue
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            values = {row["metric"][label] for row in stack.prometheus.query(filled_in(series))}
            assert values == EXPECTED[label], variable["name"]


EXPECTED = {
    "run": {"job-1"},
    "host": {"node-a", "node-b"},
    "rank": {"0", "1", "2", "3"},
    "axis": {"fsdp"},
}


@pytest.mark.parametrize("from_rules", [False, True], ids=["asked anew", "as recorded"])
def test_the_bands_of_the_mfu_ledger_add_up_to_the_peak(stack: Stack, from_rules: bool) -> None:
    # mfu 0.3, hfu 0.4, 0.5 of the steps in forward, 0.1 in data wait, 0.4 in communication.
    queries = ledger.waterfall(make_scopes(from_rules=from_rules).job)
    bands = [stack.prometheus.sum(filled_in(query.expression)) for query in queries]
    assert bands == pytest.approx([0.3, 0.1, 0.1, 0.1, 0.4], abs=0.01)


@pytest.mark.parametrize("rule", [GOODPUT_HOUR, GOODPUT_DAY], ids=["hour", "day"])
def test_the_rolling_goodput_is_the_productive_share_of_the_time_that_was_added(stack: Stack, rule: Recorded) -> None:
    """Of each second, 0.9 are productive, and 0.1 a restart."""
    assert stack.prometheus.sum(rule.name) == pytest.approx(0.9, abs=0.001)


def test_an_exemplar_of_step_time_carries_its_step(stack: Stack) -> None:
    values = stack.prometheus.get(
        "/api/v1/query_exemplars", query=f"{STEP_TIMES.prometheus}_bucket", start="0", end="9999999999"
    )
    assert {exemplar["labels"]["step"] for series in values["data"] for exemplar in series["exemplars"]} == {"1200"}


def test_rules_evaluate_and_a_healthy_job_fires_only_its_events(stack: Stack) -> None:
    groups = stack.prometheus.get("/api/v1/rules")["data"]["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
    alerts = stack.prometheus.get("/api/v1/alerts")["data"]["alerts"]
    assert {alert["labels"]["alertname"] for alert in alerts} == {"TraincopeSpike", "TraincopeGpuXid"}


def test_the_alert_names_a_rank_that_becomes_slow(stack: Stack) -> None:
    stack.job.make_slow("3")
    alert = stack.alerts.get(timeout=150)
    while alert["labels"]["alertname"] != "TraincopeStraggler":
        alert = stack.alerts.get(timeout=150)
    assert alert["status"] == "firing"
    assert alert["labels"] == {
        "alertname": "TraincopeStraggler",
        "run": "job-1",
        "host": "node-b",
        "rank": "3",
        "severity": "warning",
    }
    assert "because rank 3 of job-1 joins collectives last" in alert["annotations"]["description"]
    assert alert["annotations"]["runbook_url"] == "http://127.0.0.1:3000/d/traincope-runbook-straggler"
