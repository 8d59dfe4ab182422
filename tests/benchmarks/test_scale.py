"""Reports of many ranks: planted culprits, and the same answer from one process, several, and a Dask cluster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scale.clone import write_run
from benchmarks.scale.program import balanced, read_program
from benchmarks.scale.recording import record_stages
from benchmarks.scale.replay import Plan, replay

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1800)]
PLAN = Plan(ranks=128, steps=72, detailed=12)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 128 ranks, of one recorded rank per stage."""
    directory = tmp_path_factory.mktemp("scale")
    programs = balanced([read_program(path) for path in record_stages(directory / "recorded")])
    write_run(directory / "run", programs, replay(programs, PLAN), PLAN)
    return directory / "run"


def report(run: Path, *words: str) -> str:
    command = [sys.executable, "-m", "traincope.cli.main", "report", str(run), "--format", "json", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_rows_name_both_planted_ranks(run: Path) -> None:
    found = {finding["kind"]: finding["ranks"] for finding in json.loads(report(run, "--detail", "rows"))["verdict"]}
    assert found == {"hang": [PLAN.rank(*PLAN.stopped)], "straggler": [PLAN.rank(*PLAN.straggler)]}


def test_all_events_name_the_same_stopped_rank(run: Path) -> None:
    (first, *_) = json.loads(report(run, "--detail", "all"))["verdict"]
    assert (first["kind"], first["ranks"]) == ("hang", [PLAN.rank(*PLAN.stopped)])


@pytest.mark.parametrize("detail", ["rows", "all"])
def test_one_process_two_processes_and_dask_give_the_same_json(run: Path, detail: str) -> None:
    distributed = pytest.importorskip("distributed")
    alone, two = (report(run, "--detail", detail, "--processes", number) for number in ("1", "2"))
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        by_dask = report(run, "--detail", detail, "--scheduler", cluster.scheduler_address)
    assert alone == two == by_dask


def test_a_scheduler_that_does_not_answer_is_one_sentence(run: Path) -> None:
    command = [sys.executable, "-m", "traincope.cli.main", "report", str(run), "--scheduler", "tcp://127.0.0.1:9"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "the Dask scheduler tcp://127.0.0.1:9 does not answer" in ended.stderr
    assert "Traceback" not in ended.stderr
