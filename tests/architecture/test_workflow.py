"""The workflow for contributors is valid, and tests the recorder on every Python that the package names."""

import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from tests.compat_matrix import PYTHONS

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def test_it_is_a_workflow_of_github() -> None:
    """The schema is part of check-jsonschema, so no network is needed."""
    check = ["-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run([sys.executable, *check], capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_recorder_is_tested_on_every_named_python() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [
        name.removeprefix("Programming Language :: Python :: ") for name in classifiers if ":: Python :: 3." in name
    ]
    assert yaml.safe_load(WORKFLOW.read_text())["jobs"]["compat"]["strategy"]["matrix"]["python"] == list(PYTHONS)
    assert set(named) <= set(PYTHONS)


def test_its_steps_are_targets_of_the_makefile() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert {command.split()[1] for command in commands if command.startswith("make ")} == {
        *("check", "check-native", "test", "compat", "docs", "test-release", "dist"),
    }
    assert [command for command in commands if not command.startswith("make ")] == []
