"""`pip install traincope` alone: every offline command works, the others name the extra that they need."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat_matrix import PYTHONS, Unavailable, interpreter
from tests.ingest.writing import complete, kineto
from tests.release.distribution import ROOT
from tests.release.environments import SECONDS, Environment, environment
from traincope.explanations import explanations

pytestmark = [pytest.mark.release, pytest.mark.timeout(SECONDS)]

SAMPLES = sorted(path.parent for path in (ROOT / "sample_runs").rglob("expected.json"))
DEMO = ROOT / "sample_runs" / "demo"
HANG = ROOT / "sample_runs" / "faults" / "checkpoint-stuck"
OFFLINE = (
    ("report {demo}", "VERDICT"),
    ("report {demo} --what-if pp.transfer=0.5", "WHAT IF"),
    ("diff {demo} {demo}", "step"),
    ("explain", "straggler"),
    ("explain straggler", "What it means"),
    ("hang {hang}", "rank 1"),
    ("plan bubble --pp 4 --microbatches 8", "27.3 %"),
    ("plan search --model llama3-8b --seq 8192 --batch 64 --gpu h100 --gpus 8", "8.03 billion parameters"),
    ("ls {demo}", "done"),
    ("export {demo} --to perfetto -o -", "traceEvents"),
    ("export {demo} --to folded -o -", "forward"),
    ("export {demo} --to speedscope -o -", "speedscope"),
    ("export {demo} --to openmetrics -o -", "# EOF"),
)
"""Command and a word of its output."""
NEED = (
    ("view {demo} --no-browser", "view"),
    ("live {demo} --no-browser", "view"),
    ("report {demo} --format html -o report.html", "view"),
    ("export {demo} --to parquet -o tables", "view"),
    ("export {demo} --to otlp", "otel"),
    ("hang {hang} --native", "stacks"),
    ("dashboards build -o boards", "grafana"),
    ("sql {demo} select", "sql"),
    ("mcp {demo}", "mcp"),
    ("train examples/ddp.toml", "train"),
    ("demo", "train"),
)
"""Command and the extra that it needs."""


@pytest.fixture(scope="module")
def base(wheel: Path) -> Iterator[Environment]:
    with environment(wheel) as place:
        yield place


def words(command: str) -> list[str]:
    return command.format(demo=DEMO, hang=HANG).split()


def test_it_has_no_torch_and_every_public_name(base: Environment) -> None:
    program = """
import importlib.util, traincope
assert importlib.util.find_spec("torch") is None
assert all(getattr(traincope, name) for name in traincope.__all__)
print(traincope.__version__)
"""
    assert base.run("traincope", "--version").stdout == f"traincope {base.python(program)}"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_it_reports_the_sample_runs(base: Environment, sample: Path) -> None:
    done = base.run("traincope", "report", sample, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads((sample / "expected.json").read_text())


@pytest.mark.parametrize(("command", "output"), OFFLINE)
def test_offline_commands_work(base: Environment, command: str, output: str) -> None:
    done = base.run("traincope", *words(command))
    assert (done.returncode, done.stderr) == (0, "")
    assert output in done.stdout


@pytest.mark.parametrize("version", PYTHONS[1:])
def test_a_later_python_reports_too(wheel: Path, version: str) -> None:
    try:
        python = interpreter(version)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with environment(wheel, python=python) as place:
        done = place.run("traincope", "report", DEMO, "--format", "json")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout) == json.loads((DEMO / "expected.json").read_text())


def test_every_explanation_is_there(base: Environment) -> None:
    program = "from traincope.explanations import explanations; print(*explanations())"
    assert base.python(program).split() == list(explanations())


def test_it_imports_a_trace(base: Environment, tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(kineto([complete("gemm", "10", "40"), complete("gemm", "60", "40")]))
    assert base.run("traincope", "import", tmp_path / "rank0.json", "-o", tmp_path / "run").returncode == 0
    reported = json.loads(base.run("traincope", "report", tmp_path / "run", "--format", "json").stdout)
    assert reported["gpu_partition"][0]["span_ns"] == 90_000


def test_it_copies_a_run_without_names(base: Environment, tmp_path: Path) -> None:
    assert base.run("traincope", "export", DEMO, "--redact", "-o", tmp_path / "copy").returncode == 0
    assert "VERDICT" in base.run("traincope", "report", tmp_path / "copy").stdout


def test_run_starts_a_program_that_does_not_train(base: Environment) -> None:
    done = base.run("traincope", "run", "--", "python", "-c", "print(6 * 7)")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "42")


@pytest.mark.parametrize(("command", "extra"), NEED)
def test_a_command_names_the_extra_that_it_needs(base: Environment, command: str, extra: str) -> None:
    done = base.run("traincope", *words(command))
    assert (done.returncode, done.stdout) == (8, "")
    (sentence,) = done.stderr.splitlines()
    assert f"pip install 'traincope[{extra}]'" in sentence
