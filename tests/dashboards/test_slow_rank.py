"""A real training with a slow rank: its alert arrives through a real Prometheus and Alertmanager."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboards import servers
from tests.dashboards.conftest import QUICK
from tests.debian import need
from tests.distributed.ranks.pool import Pool
from tests.exporters.training import train
from traincope.record.session.identity import this_host
from traincope_dashboards.build import Settings, rules, write
from traincope_dashboards.panels.board import Look


@pytest.fixture
def agent(two_ranks: Pool, tmp_path: Path) -> Iterator[str]:
    """host:port of the agent of a training in which rank 1 is late in every step."""
    targets, stop = tmp_path / "targets", tmp_path / "stop"
    targets.mkdir()
    arguments = (train, str(tmp_path / "run"), str(stop), str(targets), None)
    training = threading.Thread(target=two_ranks.run, args=arguments, kwargs={"timeout_seconds": 240})
    training.start()
    try:
        servers.wait(lambda: list(targets.glob("*.json")), description="the agent's target file")
        (file,) = targets.glob("*.json")
        yield json.loads(file.read_text())[0]["targets"][0]
    finally:
        stop.touch()
        training.join()


def test_the_slow_rank_is_named(agent: str, tmp_path: Path) -> None:
    program = need("prometheus", package="prometheus")
    manager = need("prometheus-alertmanager", package="prometheus-alertmanager")
    write(rules(Settings(look=Look(), limits=QUICK)), tmp_path / "rules")
    with (
        servers.receiver() as (url, alerts),
        servers.alertmanager(manager, tmp_path, receiver=url) as address,
        servers.prometheus(
            program, tmp_path, target=agent, rules=tmp_path / "rules" / "prometheus", alertmanager=address
        ),
    ):
        alert = alerts.get(timeout=120)
        while alert["labels"]["alertname"] != "TraincopeStraggler":
            alert = alerts.get(timeout=120)
    labels = alert["labels"]
    assert (alert["status"], labels["rank"], labels["host"]) == ("firing", "1", this_host().name)
    assert f"because rank 1 of {labels['run']} joins collectives last" in alert["annotations"]["description"]
