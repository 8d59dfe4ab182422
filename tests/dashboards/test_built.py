"""Built files under dashboards/, and the configurations that load them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.dashboards.queries import LABELS_OF, labels, series_names
from tests.debian import need
from traincope.cli.main import COMMANDS
from traincope.explanations import explanations
from traincope_dashboards import runbooks
from traincope_dashboards.build import DASHBOARDS, RULES, RUNBOOKS, Settings, build
from traincope_dashboards.panels.board import Look
from traincope_dashboards.push import FOLDERS, datasource
from traincope_dashboards.rules.alerts import alerts
from traincope_dashboards.rules.limits import Limits

DIRECTORY = Path(__file__).parents[2] / "dashboards"
COMPOSE = DIRECTORY / "compose"
OF_PROMETHEUS = {"instance"}
"""Labels that Prometheus adds to scraped series."""
ALERTS = list(alerts(Limits()))


def test_the_stored_files_equal_the_built_ones() -> None:
    stored = {
        str(path.relative_to(DIRECTORY)): path.read_text()
        for directory in (DASHBOARDS, RUNBOOKS, RULES)
        for path in (DIRECTORY / directory).iterdir()
    }
    built = build(Settings())
    stale = sorted(name for name in stored.keys() | built.keys() if stored.get(name) != built.get(name))
    assert stale == [], "run: traincope dashboards build"


def test_prometheus_accepts_the_rules() -> None:
    promtool = need("promtool", package="prometheus")
    files = sorted((DIRECTORY / RULES).iterdir())
    done = subprocess.run([promtool, "check", "rules", *files], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr


def test_rules_use_only_existing_metrics_and_their_labels() -> None:
    for path in (DIRECTORY / RULES).iterdir():
        for rule in yaml.safe_load(path.read_text())["groups"][0]["rules"]:
            names = series_names(rule["expr"])
            assert names, rule
            assert names <= LABELS_OF.keys(), rule
            known = set().union(*(LABELS_OF[name] for name in names)) | OF_PROMETHEUS
            assert labels(rule["expr"]) <= known, rule


def test_alerts_have_summary_description_severity_and_runbook() -> None:
    for rule in yaml.safe_load((DIRECTORY / RULES / "alerts.yaml").read_text())["groups"][0]["rules"]:
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["description"].endswith(".")
        assert "for" in rule or "increase(" in rule["expr"], "only single events fire at once"
        name = rule["annotations"]["runbook_url"].removeprefix(f"http://127.0.0.1:3000/d/{runbooks.UID}")
        assert (DIRECTORY / RUNBOOKS / f"{runbooks.UID}{name}.json").exists()
        uid = re.sub(r"\?.*", "", rule["annotations"]["dashboard_url"]).rpartition("/")[2]
        assert (DIRECTORY / DASHBOARDS / f"{uid}.json").exists()


def test_alerts_and_runbooks_correspond() -> None:
    assert runbooks.names() == sorted(alert.slug for alert in ALERTS)


@pytest.mark.parametrize("name", runbooks.names())
def test_a_runbook_has_meaning_check_and_action(name: str) -> None:
    page = runbooks.markdown(name, grafana="https://g.example")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == ["What it means", "How to check", "What to do"]
    commands = re.findall(r"^    traincope (\w+)", page, re.MULTILINE)
    assert commands
    assert set(commands) <= COMMANDS.keys()
    linked = re.findall(r"\]\(https://g\.example/d/traincope-runbook-([a-z-]+)\)", page)
    assert len(linked) == page.count("](")
    assert set(linked) <= set(runbooks.names())
    # The heading is the alert's name, so that a reader finds it.
    named = {alert.slug: alert.name for alert in ALERTS}[name]
    assert runbooks.title(name).startswith(f"{named}: ")


def test_what_to_do_about_a_kind_of_fault_is_that_of_its_explanation() -> None:
    page, lost = runbooks.markdown("gpu-fault", grafana=""), explanations()["gpu_lost"]
    assert "traincope explain" not in page
    assert f"## What to do\n\n**A GPU is lost** (`gpu_lost`)\n\n{lost.part('What to do')}\n\n" in page
    assert page.rstrip().endswith(explanations()["rows_remapped"].part("What to do"))
    assert lost.part("What to do").startswith("1. Drain and reboot the host.")


def test_limits_in_the_runbooks_are_the_limits_of_the_rules() -> None:
    pages = " ".join(runbooks.markdown(name, grafana="") for name in runbooks.names())
    documented = set(re.findall(r"--set (\w+)=", pages)) | set(re.findall(r"`(\w+_seconds)`", pages))
    assert {"hang_seconds", "checkpoint_seconds"} <= documented
    assert all(hasattr(Limits(), name) for name in documented)


def test_compose_mounts_existing_files_and_listens_on_loopback() -> None:
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    assert set(services) == {"prometheus", "alertmanager", "grafana"}
    for service in services.values():
        for volume in service["volumes"]:
            source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
            assert not source.startswith(".") or (COMPOSE / source).exists(), source
    for name, port in (("prometheus", 9090), ("alertmanager", 9093)):
        assert f"--web.listen-address=127.0.0.1:{port}" in services[name]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_prometheus_and_alertmanager_accept_the_configurations_of_compose(tmp_path: Path) -> None:
    promtool, amtool = need("promtool", package="prometheus"), need("amtool", package="prometheus-alertmanager")
    shutil.copy(COMPOSE / "prometheus.yml", tmp_path)
    shutil.copytree(DIRECTORY / RULES, tmp_path / "rules")
    checked = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, timeout=150
    )
    assert checked.returncode == 0, checked.stderr
    assert "2 rule files found" in checked.stdout
    subprocess.run([amtool, "check-config", COMPOSE / "alertmanager.yml"], check=True, capture_output=True, timeout=150)


def test_provisioned_dashboards_equal_the_pushed_ones() -> None:
    provisioned = COMPOSE / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioned / "datasources" / "traincope.yaml").read_text())["datasources"]
    pushed = datasource(url="http://127.0.0.1:9090", viewer=Look().viewer)
    # In a provisioning file $$ is a dollar sign.
    assert json.loads(json.dumps(source).replace("$$", "$")) == {**pushed, "isDefault": True}
    providers = yaml.safe_load((provisioned / "dashboards" / "traincope.yaml").read_text())["providers"]
    assert {provider["folderUid"]: provider["folder"] for provider in providers} == FOLDERS
    for provider in providers:
        inside = provider["options"]["path"].removeprefix("/var/lib/traincope/")
        assert list((DIRECTORY / "grafana" / inside).glob("*.json"))
