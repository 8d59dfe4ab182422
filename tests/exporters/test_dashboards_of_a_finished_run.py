"""Queries of all dashboards, on a real Prometheus over a finished run."""

import json
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from tests.dashboards import queries
from tests.exporters.prometheus.prometheus_over import prometheus_over
from traincope import open_run
from traincope.metrics.catalogue import BY_PROMETHEUS
from traincope.metrics.metric import Fold
from traincope_dashboards import foreign
from traincope_dashboards.build import dashboards
from traincope_dashboards.panels.board import Look
from traincope_dashboards.panels.panels import STEP
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


LOOP = """
import sys, time, traincope
with traincope.run(sys.argv[1]) as run:
    for _ in range(12):
        time.sleep(0.1)
        run.step()
"""


def test_a_panel_that_a_plain_loop_on_a_cpu_leaves_empty_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank without collectives, known peak, checkpoints and logged values, and with the metrics of one node.

    Grafana shows the reason only where no series has data, so the step of such a panel has none.
    """
    subprocess.run([sys.executable, "-c", LOOP, str(tmp_path / "loop")], check=True)
    run = open_run(tmp_path / "loop")
    omitted = tuple(metric.prometheus for metric in BY_PROMETHEUS.values() if metric.fold is Fold.OMIT)
    lines = "".join(openmetrics(run)).splitlines(keepends=True)
    (tmp_path / "run.om").write_text("".join(line for line in lines if not line.startswith(omitted)))
    monkeypatch.setitem(queries.VARIABLES, "$run", run.run.info.label)
    monkeypatch.setitem(queries.VARIABLES, "$__rate_interval", "20s")
    always = {name for name, metric in BY_PROMETHEUS.items() if metric.name.startswith(("agent.", "data.age"))}
    silent, partly = [], []
    with prometheus_over(tmp_path / "run.om", tmp_path) as prometheus:
        for board in dashboards(Look()).values():
            for _, group in groupby(queries.targets(board), key=lambda target: target.panel["id"]):
                targets = list(group)
                shown = [
                    target
                    for target in targets
                    if queries.series_names(target.expression) <= always
                    or CHANGE in target.expression
                    or prometheus.query(target.expression, at_seconds=run.end_ns / 1e9)
                ]
                if {target.legend for target in shown} <= {STEP}:
                    partly += [target.where for target in shown]
                    silent += [targets[0].where] if '"noValue"' not in json.dumps(targets[0].panel) else []
    assert (silent, partly) == ([], [])
