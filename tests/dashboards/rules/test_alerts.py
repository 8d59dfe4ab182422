import json
import subprocess
from pathlib import Path

from tests.dashboards.cases import CASES, Case
from tests.debian import need
from traincope_dashboards.rules.alerts import alerts
from traincope_dashboards.rules.limits import Limits

RULES = Path(__file__).parents[3] / "dashboards" / "prometheus"
ALERTS = {alert.name: alert for alert in alerts(Limits())}
GRAFANA = "http://127.0.0.1:3000"


def expected(case: Case) -> list[dict[str, object]]:
    if case.labels is None:
        return []
    alert = ALERTS[case.alert]
    annotations = {
        "summary": case.summary,
        "description": case.description,
        "runbook_url": f"{GRAFANA}/d/traincope-runbook-{alert.slug}",
        "dashboard_url": f"{GRAFANA}/d/{alert.board}?var-run=r",
    }
    return [{"exp_labels": case.labels, "exp_annotations": annotations}]


def unit_test(case: Case) -> dict[str, object]:
    """A case in promtool's format."""
    asked = {"eval_time": f"{case.minute}m", "alertname": f"Traincope{case.alert}", "exp_alerts": expected(case)}
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    return {
        "name": f"{case.alert} at {case.minute}m",
        "interval": "1m",
        "input_series": series,
        "alert_rule_test": [asked],
    }


def test_each_alert_fires_with_its_text_exactly_when_expected(tmp_path: Path) -> None:
    promtool = need("promtool", package="prometheus")
    files = [str(path) for path in sorted(RULES.glob("*.yaml"))]
    suite = tmp_path / "alerts.json"
    suite.write_text(json.dumps({"rule_files": files, "tests": [unit_test(case) for case in CASES]}))
    done = subprocess.run([promtool, "test", "rules", str(suite)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout


def test_every_alert_has_a_firing_and_a_silent_case() -> None:
    fires = {case.alert for case in CASES if case.labels is not None}
    quiet = {case.alert for case in CASES if case.labels is None}
    assert fires == quiet == set(ALERTS)
