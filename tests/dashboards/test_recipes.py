"""Queries, configurations and scripts of docs/operate/fleet.md, in the programs that read them."""

import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dashboards.conftest import Stack
from tests.debian import need
from traincope.cli.launch_files.pods import FIELDS

PAGE = (Path(__file__).parents[2] / "docs" / "operate" / "fleet.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def configuration(word: str) -> dict[str, Any]:
    """The only YAML with this key."""
    (found,) = [each for text in blocks("yaml") if word in (each := yaml.safe_load(text))]
    return dict(found)


@pytest.mark.parametrize("query", blocks("promql"), ids=["utilization", "pods", "users"])
def test_a_documented_join_has_the_value_of_the_other_exporter(stack: Stack, query: str) -> None:
    expected = {"utilization": 0.87, "pods": 1.0, "users": 87.0}
    name = "pods" if "kube_pod_info" in query else "users" if "avg by (user)" in query else "utilization"
    stack.prometheus.wait_for(query)  # its first scrape
    result = stack.prometheus.query(query)
    assert {float(series["value"][1]) for series in result} == {expected[name]}
    labels = result[0]["metric"]
    if name == "utilization":
        assert {series["metric"]["rank"] for series in result} == {"0", "1", "2", "3"}
    if name == "pods":
        assert (labels["node"], labels["created_by_kind"], labels["created_by_name"]) == ("gke-7", "Job", "job-1")
    if name == "users":
        assert labels == {"user": "some user"}


def test_alertmanager_pages_critical_alerts_at_once(tmp_path: Path) -> None:
    amtool = need("amtool", package="prometheus-alertmanager")
    path = tmp_path / "alertmanager.yml"
    path.write_text(yaml.safe_dump(configuration("route")))
    subprocess.run([amtool, "check-config", path], check=True, capture_output=True, timeout=150)
    test = [amtool, "config", "routes", "test", f"--config.file={path}"]
    for severity, receiver in (("critical", "pager"), ("warning", "team")):
        command = [*test, f"severity={severity}"]
        routed = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
        assert routed.stdout.strip() == receiver


def test_the_sidecars_configuration_is_one_of_prometheus(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration("remote_write")))
    promtool = need("promtool", package="prometheus")
    command = [promtool, "check", "config", "--agent", tmp_path / "prometheus.yml"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert checked.returncode == 0, checked.stderr


def test_launch_files_of_pods_set_the_documented_variables() -> None:
    documented = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in configuration("env")["env"]}
    assert documented == FIELDS


def test_the_pod_monitor_selects_the_pods_and_the_port_of_launch_files() -> None:
    monitor = configuration("apiVersion")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (monitor["kind"], endpoint["port"], endpoint["scheme"]) == ("PodMonitor", "metrics", "https")
    assert monitor["spec"]["selector"] == {"matchExpressions": [{"key": "traincope.job", "operator": "Exists"}]}


def test_slurms_scripts_make_the_directory_and_print_variables(tmp_path: Path) -> None:
    prolog, task_prolog = blocks("sh")
    user, group = ("54321", "54321") if os.geteuid() == 0 else (str(os.getuid()), str(os.getgid()))
    job = {"SLURM_JOB_USER": "ann", "SLURM_JOB_ID": "7", "SLURM_JOB_UID": user, "SLURM_JOB_GID": group}
    here = prolog.replace("/dev/shm", str(tmp_path))
    subprocess.run([need("sh", package="dash"), "-c", here], env={**os.environ, **job}, check=True, timeout=150)
    status = (tmp_path / f"traincope-{user}").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (int(user), 0o755)
    command, environment = ["sh", "-c", task_prolog], {**os.environ, **job}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=150)
    assert printed.stdout.splitlines() == [
        "export TRAINCOPE_METRICS=127.0.0.1:9400",
        "export TRAINCOPE_OUT=/shared/traincope_runs/ann/slurm-7",
    ]
