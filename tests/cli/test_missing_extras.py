"""With the base packages alone, each command that needs more names the exact command that installs it."""

import os
import subprocess
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from traincope.errors import MissingDependencyError

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "sample_runs" / "demo"
HANG = ROOT / "sample_runs" / "faults" / "checkpoint-stuck"
FSDP = ROOT / "examples" / "fsdp.toml"
CHECKOUT = (ROOT, ROOT / "exporters", ROOT / "dashboards")
NEED = (
    (f"view {DEMO} --no-browser", "view"),
    (f"live {DEMO} --no-browser", "view"),
    ("plan --open --no-browser", "view"),
    (f"report {DEMO} --format html -o report.html", "view"),
    (f"export {DEMO} --to parquet -o tables", "view"),
    (f"export {DEMO} --to otlp", "otel"),
    (f"hang {HANG} --native", "stacks"),
    ("dashboards build -o boards", "grafana"),
    (f"sql {DEMO} select", "sql"),
    (f"mcp {DEMO}", "mcp"),
    (f"train {FSDP}", "train"),
    (f"train {FSDP} --emit slurm", "train"),
    ("demo", "train"),
    ("demo --rl", "train"),
    ("drift", "train"),
    (f"preflight {FSDP}", "train"),
    (f"plan check {FSDP} --gpu h100 --gpus 8", "train"),
    (f"report {DEMO} --scheduler tcp://127.0.0.1:9", "dask"),
    ("report s3://bucket/run", "s3"),
)
"""Command and the extra that it needs."""


def required(name: str) -> Iterator[str]:
    """A distribution, and those that it needs without any extra."""
    yield name
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from required(requirement.name)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment that has links to the base packages, and the checkout."""
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in {*required("traincope")} - {"traincope"}:
        for top in {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    (packages / "checkout.pth").write_text("".join(f"{place}\n" for place in CHECKOUT))
    return folder / "bin" / "python"


@pytest.mark.parametrize(("command", "extra"), NEED)
def test_a_command_names_the_extra_that_it_needs(python: Path, tmp_path: Path, command: str, extra: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRAINCOPE_"))}
    done = subprocess.run(
        [python, "-m", "traincope.cli.main", *command.split()],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    (sentence,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (MissingDependencyError.exit_code, ""), sentence
    assert f"pip install 'traincope[{extra}]'" in sentence
    assert list(tmp_path.iterdir()) == []
