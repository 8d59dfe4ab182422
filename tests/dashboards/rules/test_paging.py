"""Time from a hang to the page: each delay is read from the shipped file that sets it."""

import json
import subprocess
from pathlib import Path

import yaml

from tests.debian import need
from traincope.analysis.faults.hangs.evidence.patience import MULTIPLE
from traincope.live.node.agent import DEFAULT_INTERVAL_SECONDS

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "dashboards" / "prometheus" / "alerts.yaml"
COMPOSE = ROOT / "dashboards" / "compose"
STEP_SECONDS = 5
"""Longest step for which the page comes within a minute."""
PAGE_SECONDS = 60
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


def seconds(text: str) -> float:
    unit = text.lstrip("0123456789")
    return float(text.removesuffix(unit)) * UNITS[unit]


def test_the_delays_from_a_hang_to_the_page_add_up_to_less_than_a_minute() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    hangs = [rule for rule in group["rules"] if rule["alert"] in ("TraincopeHang", "TraincopeHangCulprit")]
    (critical,) = yaml.safe_load((COMPOSE / "alertmanager.yml").read_text())["route"]["routes"]
    delays = {
        "the agent's patience": float(MULTIPLE * STEP_SECONDS),
        "the agent's next look": float(DEFAULT_INTERVAL_SECONDS),
        "the scrape": seconds(yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["global"]["scrape_interval"]),
        "the evaluation": seconds(group["interval"]),
        "the hold": max(seconds(rule.get("for", "0s")) for rule in hangs),
        "the notification": seconds(critical["group_wait"]),
    }
    assert len(hangs) == 2
    assert list(delays.values()) == [15, 5, 15, 15, 0, 5]
    assert sum(delays.values()) <= PAGE_SECONDS
    page = (ROOT / "docs" / "operate" / "fleet.md").read_text()
    assert f"| sum | {sum(delays.values()):g} s |" in page


def test_the_alert_fires_at_the_first_evaluation_after_the_scrape(tmp_path: Path) -> None:
    """Simulated time: a scrape at 45 s sees the verdict, for the first time."""
    promtool = need("promtool", package="prometheus")
    verdict = 'traincope_faults_total{run="r",host="h",rank="3",kind="hang"}'
    healthy = {"traincope_data_age_seconds": "1 1 5+15x40", "traincope_step_duration_seconds": "5x40"}
    series = [{"series": f'{name}{{run="r",host="h",rank="0"}}', "values": values} for name, values in healthy.items()]
    alerts = ("TraincopeHang", "TraincopeHangCulprit")
    asked = [
        {"expr": f'ALERTS{{alertname="{name}",alertstate="firing"}}', "eval_time": at, "exp_samples": samples}
        for at, fires in (("30s", False), ("45s", True), ("60s", True))
        for name, labels in zip(alerts, ("", ', host="h", kind="hang", rank="3"'), strict=True)
        for samples in [
            [
                {
                    "labels": f'{{__name__="ALERTS", alertname="{name}", alertstate="firing", run="r", '
                    f'severity="critical"{labels}}}',
                    "value": 1,
                }
            ]
            if fires
            else []
        ]
    ]
    suite = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [*series, {"series": verdict, "values": "_x3 1x20"}],
                "promql_expr_test": asked,
            }
        ],
    }
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    command = [promtool, "test", "rules", str(tmp_path / "suite.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
