"""A job that hangs, the shipped configurations of Prometheus and Alertmanager, and the time until the page."""

import logging
import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dashboards import servers
from tests.dashboards.rules.test_paging import COMPOSE, PAGE_SECONDS, ROOT
from tests.debian import need
from tests.live.processes import until
from tests.ports import free_port

CULPRIT = 1
NUM_STEPS = 100
"""Steps before the hang."""


@contextmanager
def training(out: Path, signals: Path, *, targets: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Two ranks of torchrun, with the agent's own settings. Rank 1 sleeps in the step after `signals/go` appears."""
    torchrun = (Path(sys.executable).parent / "torchrun", "--nproc-per-node", 2, "--master-port", free_port())
    words = (*torchrun, "-m", "evaluation.score.hosts.training", out, "sleep", CULPRIT, signals)
    unset = {name: "" for name in os.environ if name.startswith("TRAINCOPE_")}
    variables = {"TRAINCOPE_AGENT": "on", "TRAINCOPE_TARGETS": str(targets), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(list(map(str, words)), cwd=ROOT, env={**os.environ, **unset, **variables})
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=90)


@contextmanager
def page(directory: Path, *, targets: Path) -> Iterator[tuple[servers.Prometheus, "queue.Queue[dict[str, Any]]"]]:
    """The shipped configurations. Only places differ: of targets, of the Alertmanager, and of its receiver."""
    (directory / "rules").symlink_to(ROOT / "dashboards" / "prometheus")
    routing = yaml.safe_load((COMPOSE / "alertmanager.yml").read_text())
    scraping = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    (files,) = scraping["scrape_configs"][0]["file_sd_configs"]
    files["files"] = [str(targets / Path(files["files"][0]).name)]
    programs = [need(name, package=name) for name in ("prometheus", "prometheus-alertmanager")]
    with servers.receiver() as (url, alerts):
        routing["receivers"] = [{"name": "shown", "webhook_configs": [{"url": url}]}]
        with servers.configured_alertmanager(programs[1], directory, routing) as address:
            scraping["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [address]
            with servers.configured_prometheus(programs[0], directory, scraping) as prometheus:
                yield prometheus, alerts


@pytest.mark.timing
def test_a_hang_is_paged_within_a_minute(tmp_path: Path) -> None:
    signals, targets = tmp_path / "signals", tmp_path / "targets"
    for path in (signals, targets):
        path.mkdir(mode=0o755)
    with (
        page(tmp_path, targets=targets) as (prometheus, alerts),
        training(tmp_path / "run", signals, targets=targets) as job,
    ):
        until(lambda: prometheus.sum("traincope_step_last") > NUM_STEPS or job.poll() is not None, "scraped steps")
        (signals / "go").touch()
        until(lambda: (signals / "step").exists() or job.poll() is not None, "the hang")
        began = time.monotonic()
        alert = alerts.get(timeout=10 * PAGE_SECONDS)
        seconds = time.monotonic() - began
    labels = {name: alert["labels"][name] for name in ("alertname", "rank", "kind", "severity")}
    logging.getLogger(__name__).info("the page came after %.1f s", seconds)
    assert labels == {"alertname": "TraincopeHangCulprit", "rank": "1", "kind": "hang", "severity": "critical"}
    assert seconds <= PAGE_SECONDS
