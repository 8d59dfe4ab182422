"""Queries of all dashboards, on a real Prometheus over a finished run."""

from pathlib import Path

import pytest

from tests.dashboards import queries
from tests.exporters.prometheus.prometheus_over import prometheus_over
from traincope import open_run
from traincope.metrics.catalogue import BY_PROMETHEUS
from traincope_dashboards import foreign
from traincope_dashboards.build import dashboards
from traincope_dashboards.panels.board import Look
from traincope_exporters.history import LIVE_ONLY
from traincope_exporters.openmetrics import openmetrics

NOT_IN_THE_DEMO = {
    *foreign.LABELS,
    *(name for name, metric in BY_PROMETHEUS.items() if metric.name.startswith(LIVE_ONLY)),
    *(
        name
        for name, metric in BY_PROMETHEUS.items()
        if metric.name in ("faults", "module.time", "ambiguous.wait", "run_ahead", "job.interruptions", "job.badput")
    ),
}
"""Metrics without values: other exporters' and live ones, faults, interruptions and ambiguous waits (the demo has
none), and modules and marks on GPUs (not recorded).
"""
CHANGE = "delta("
"""Function of queries that a finished run does not answer: its values of the whole job are one point, at its end."""


def test_every_panel_of_recorded_metrics_shows_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run("sample_runs/demo")
    (tmp_path / "run.om").write_text("".join(openmetrics(run)))
    monkeypatch.setitem(queries.VARIABLES, "$run", run.run.info.id)
    monkeypatch.setitem(queries.VARIABLES, "$__rate_interval", "20s")
    targets = [target for text in dashboards(Look()).values() for target in queries.targets(text)]
    with prometheus_over(tmp_path / "run.om", tmp_path) as prometheus:
        end = run.end_ns / 1e9
        asked = [target for target in targets if CHANGE not in target.expression]
        empty = [target for target in asked if not prometheus.query(target.expression, at_seconds=end)]
    missing = {target.where: queries.series_names(target.expression) for target in empty}
    assert {where: names for where, names in missing.items() if not names & NOT_IN_THE_DEMO} == {}
    assert len(empty) < len(targets) / 2
