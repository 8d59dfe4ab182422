"""A simulated job, scraped by a real Prometheus that sends alerts to a real Alertmanager."""

import queue
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.dashboards import exposition, servers
from tests.debian import need
from traincope_dashboards.build import Settings, rules, write
from traincope_dashboards.panels.board import Look
from traincope_dashboards.rules.limits import Limits

QUICK = Limits(window_seconds=5, baseline_seconds=60, event_seconds=60, hold=0.005, evaluation_seconds=1)
"""Rates use a window of 5 s, and a hold time of five minutes becomes 1.5 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    job: exposition.Job
    prometheus: servers.Prometheus
    alerts: "queue.Queue[dict[str, Any]]"
    """Alerts as the Alertmanager delivers them."""


@pytest.fixture(scope="session")
def exposed() -> Iterator[exposition.Served]:
    """The scraped job; any object that exposes every metric of the catalogue works."""
    yield from exposition.serve()


@pytest.fixture(scope="session")
def stack(exposed: exposition.Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    program = need("prometheus", package="prometheus")
    manager = need("prometheus-alertmanager", package="prometheus-alertmanager")
    directory = tmp_path_factory.mktemp("prometheus")
    write(rules(Settings(look=Look(), limits=QUICK)), directory / "rules")
    with (
        servers.receiver() as (url, alerts),
        servers.alertmanager(manager, directory, receiver=url) as address,
        servers.prometheus(
            program,
            directory,
            target=exposed.address,
            rules=directory / "rules" / "prometheus",
            alertmanager=address,
        ) as prometheus,
    ):
        yield Stack(job=exposed.job, prometheus=prometheus, alerts=alerts)
