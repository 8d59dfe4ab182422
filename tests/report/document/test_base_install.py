"""The base install: the wheel with its dependencies and theirs, and no other package."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.release.distribution import PIP, build_wheel, copy_sources

REPOSITORY = Path(__file__).parents[3]
BASE = ("isal", "msgspec", "numpy", "rich", "pygments", "markdown_it", "mdurl")
EXTRAS = (
    "torch",
    "cattrs",
    "plotly",
    "dash",
    "pyarrow",
    "pynvml",
    "prometheus_client",
    "opentelemetry",
    "duckdb",
    "mcp",
)
MAIN = "import sys; from traincope.cli.main import main; main(sys.argv[1:])"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds what `pip install traincope` installs: built and installed from this checkout."""
    wheel = build_wheel(copy_sources(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("wheels"))
    installed = tmp_path_factory.mktemp("base")
    without = ("--no-deps", "--no-index", "--no-compile")
    subprocess.run([*PIP, "install", *without, "--target", str(installed), str(wheel)], check=True)
    for package in BASE:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        (installed / package).symlink_to(folder)
        if (libraries := folder.with_name(f"{package}.libs")).exists():
            (installed / libraries.name).symlink_to(libraries)
    return installed


def in_base(base: Path, program: str, *arguments: str) -> str:
    # -S leaves out site-packages: only the base directory and the standard library can be imported.
    command = [sys.executable, "-S", "-c", program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(base)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=base)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_base_install_has_none_of_the_extras(base: Path) -> None:
    program = "import sys, importlib.util as u; print([name for name in sys.argv[1:] if u.find_spec(name)])"
    assert in_base(base, program, *EXTRAS).strip() == "[]"
    located = in_base(base, "import traincope; print(traincope.__file__, traincope.__version__)")
    assert located.startswith(str(base))


@pytest.mark.parametrize("name", ["demo", "demo-3d"])
def test_the_base_install_writes_the_json_report(base: Path, name: str) -> None:
    run = REPOSITORY / "sample_runs" / name
    assert json.loads(in_base(base, MAIN, "report", str(run), "--format", "json"))["run"]["id"]


def test_the_base_install_writes_the_text_report_and_compares_runs(base: Path) -> None:
    run = str(REPOSITORY / "sample_runs" / "demo")
    assert "VERDICT" in in_base(base, MAIN, "report", run)
    assert in_base(base, MAIN, "diff", run, run)


def test_the_base_install_plans_and_exports_text(base: Path) -> None:
    assert "27.3 %" in in_base(base, MAIN, "plan", "bubble", "--pp", "4", "--microbatches", "8")
    assert in_base(base, MAIN, "export", str(REPOSITORY / "sample_runs" / "demo"), "--to", "folded", "-o", "-")


def test_the_base_install_names_the_extra_that_is_missing(base: Path) -> None:
    program = f"import sys\ntry:\n    {MAIN}\nexcept SystemExit as end:\n    print(end.code)"
    run = str(REPOSITORY / "sample_runs" / "demo")
    for words in (("view", run, "--no-browser"), ("sql", run, "select 1"), ("mcp", run)):
        assert in_base(base, program, *words).strip() == "8"
