"""A job that is told but not there, scraped by a real Prometheus whose alerts go to a real Alertmanager."""

import queue
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.dashboards import exposition, servers
from tests.debian import need
from traincope_dashboards.board import Look
from traincope_dashboards.build import Settings, rules, write
from traincope_dashboards.limits import Limits

QUICK = Limits(window_seconds=5, baseline_seconds=60, event_seconds=60, hold=0.005)
"""Rates look back 5 s, and what must last five minutes lasts 1.5 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    job: exposition.Job
    prometheus: servers.Prometheus
    alerts: "queue.Queue[dict[str, Any]]"
    """As the Alertmanager hands them on."""


@pytest.fixture(scope="session")
def exposed() -> Iterator[exposition.Served]:
    """What is scraped: whatever speaks for every metric of the catalogue can stand here."""
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
