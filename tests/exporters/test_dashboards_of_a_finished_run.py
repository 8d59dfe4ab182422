"""The dashboards' own queries, on a real Prometheus over a run that has ended."""

from pathlib import Path

import pytest

from tests.dashboards import queries
from tests.exporters.prometheus_over import prometheus_over
from traincope import open_run
from traincope.metrics import BY_PROMETHEUS
from traincope_dashboards.board import Look
from traincope_dashboards.build import dashboards
from traincope_exporters.history import LIVE_ONLY
from traincope_exporters.openmetrics import openmetrics

NOT_IN_THE_DEMO = {
    *(name for name, metric in BY_PROMETHEUS.items() if metric.name.startswith(LIVE_ONLY)),
    *(name for name, metric in BY_PROMETHEUS.items() if metric.name in ("faults", "module.time")),
}
"""It is looked at by nobody any more, had no faults, and was recorded without modules."""


def test_every_panel_shows_something_but_those_of_what_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run("sample_runs/demo")
    (tmp_path / "run.om").write_text("".join(openmetrics(run)))
    monkeypatch.setitem(queries.VARIABLES, "$run", run.run.info.id)
    monkeypatch.setitem(queries.VARIABLES, "$__rate_interval", "20s")
    targets = [one for text in dashboards(Look()).values() for one in queries.targets(text)]
    with prometheus_over(tmp_path / "run.om", tmp_path) as prometheus:
        end = run.end_ns / 1e9
        empty = [one for one in targets if not prometheus.query(one.expression, at_seconds=end)]
    missing = {one.where: queries.series_names(one.expression) for one in empty}
    assert {where: names for where, names in missing.items() if not names & NOT_IN_THE_DEMO} == {}
    assert len(empty) < len(targets) / 2
