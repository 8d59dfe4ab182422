"""A training that is started in any way, in any company, is recorded, and it is the same training."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.debian import need
from tests.environments import CONSTRAINTS, environment
from tests.launchers.launches import Launch, check
from tests.launchers.slurm import slurm
from tests.launchers.table import BEGIN, COMPANY, END, INJECTION, LAUNCHES, NIGHTLY, PAGE, SLURM, TOOLS, table

INJECTED = str(Path(__file__).parent / "injected.c")


def test_the_page_has_the_table() -> None:
    """`python -m tests.launchers.table` writes it."""
    assert PAGE.read_text().partition(BEGIN)[2].partition(END)[0] == table()


@pytest.mark.sweep
@pytest.mark.parametrize("launch", NIGHTLY, ids=lambda launch: launch.name)
def test_ranks_that_a_script_forks_are_recorded(launch: Launch, tmp_path: Path) -> None:
    check(launch, tmp_path)


@pytest.mark.launchers
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("launch", [*LAUNCHES, *COMPANY], ids=lambda launch: launch.name)
def test_the_recorded_training_is_the_bare_one(launch: Launch, tmp_path: Path) -> None:
    if launch.around[:1] == ("unshare",) and subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("this user may make no mount namespace")
    check(launch, Path(os.environ["TMPDIR"]) / tmp_path.name if launch.around else tmp_path)


@pytest.mark.launchers
@pytest.mark.timeout(1000)
def test_an_injected_sampling_profiler_and_the_recorder_do_not_notice_each_other(tmp_path: Path) -> None:
    compiler = need("cc", package="gcc")
    library, interrupts = tmp_path / "injected.so", tmp_path / "interrupts"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), INJECTED], check=True)
    interrupts.mkdir()
    check(replace(INJECTION, variables={"LD_PRELOAD": str(library), "INJECTED": str(interrupts)}), tmp_path)
    assert max(int(path.read_text()) for path in interrupts.iterdir()) > 10


@pytest.mark.launchers
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("launch", SLURM, ids=lambda launch: launch.name)
def test_tasks_of_slurm_are_recorded(launch: Launch, tmp_path: Path) -> None:
    with slurm(tmp_path) as variables:
        check(replace(launch, variables=variables), tmp_path)


@pytest.mark.launchers
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    ("package", "launch"),
    [(package, launch) for package, launches in TOOLS.items() for launch in launches],
    ids=lambda value: value.name if isinstance(value, Launch) else value,
)
def test_a_tool_and_the_recorder_do_not_notice_each_other(package: str, launch: Launch, tmp_path: Path) -> None:
    python = environment("launchers", *CONSTRAINTS, *package.split(), on_ours=True)
    if python is None:
        pytest.skip(f"{package} does not install")
    check(launch, tmp_path, python=str(python))
