"""The workflows are valid, and that for contributors tests the recorder on every Python that the package names."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compat_matrix import PYTHONS

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
TARGETS = {
    "ci.yml": {"check", "check-native", "test", "compat", "docs", "test-release", "dist"},
    "daily.yml": {"programs", "test-engine"},
}


def test_they_are_workflows_of_github() -> None:
    """The schema is part of check-jsonschema, so no network is needed."""
    assert {path.name for path in WORKFLOWS.iterdir()} == set(TARGETS)
    files = [str(WORKFLOWS / name) for name in TARGETS]
    check = ["-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *files]
    done = subprocess.run([sys.executable, *check], capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_recorder_is_tested_on_every_named_python() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [
        name.removeprefix("Programming Language :: Python :: ") for name in classifiers if ":: Python :: 3." in name
    ]
    assert jobs_of("ci.yml")["compat"]["strategy"]["matrix"]["python"] == list(PYTHONS)
    assert set(named) <= set(PYTHONS)


@pytest.mark.parametrize("name", TARGETS)
def test_its_steps_are_targets_of_the_makefile(name: str) -> None:
    commands = [step["run"] for job in jobs_of(name).values() for step in job["steps"] if "run" in step]
    assert {command.split()[1] for command in commands if command.startswith("make ")} == TARGETS[name]
    assert [command for command in commands if not command.startswith("make ")] == []


def jobs_of(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((WORKFLOWS / name).read_text())["jobs"])
