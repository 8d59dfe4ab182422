"""Real ranks over gloo: what they measure, and an injected slowness that both rounds show."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks.pool import Pool
from traincope.engine.config import Config, ModelConfig, ParallelConfig, TrainConfig
from traincope.preflight.configuration import configured
from traincope.preflight.judging.findings import Kind
from traincope.preflight.judging.judgement import Judgement, judge
from traincope.preflight.measurements import Measurements, Settings
from traincope.preflight.measuring.measure import measure

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1500)]
CONFIG = Config(
    model=ModelConfig(layers=4, hidden=32, heads=2, kv_heads=2, ffn=64, sequence=16),
    parallel=ParallelConfig(pp=2, fsdp=2, microbatches=4),
    train=TrainConfig(batch=8),
)
SETTINGS = Settings(steps=5, alarm_ratio=1.0, repeats=2)
TIMEOUT_SECONDS = 600.0
DELAY_SECONDS = 0.05


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(4)
    yield made
    made.stop()


def measured_with(slow: str, rank: int, settings: Settings) -> Measurements:
    """Runs on every rank of a pool; `slow` names what is slow on `rank`."""
    targets: dict[str, tuple[Any, str]] = {"mm": (torch, "mm"), "send": (dist, "send")}
    device = torch.device("cpu")
    if dist.get_rank() != rank:
        return measure(CONFIG, settings, local_rank=0, device=device, report=lambda _: None)
    owner, name = targets[slow]
    with patch.object(owner, name, late(getattr(owner, name))):
        return measure(CONFIG, settings, local_rank=0, device=device, report=lambda _: None)


def late(call: Callable[..., Any]) -> Callable[..., Any]:
    def later(*args: Any, **kwargs: Any) -> Any:
        time.sleep(DELAY_SECONDS)
        return call(*args, **kwargs)

    return later


def judged(measured: Measurements, settings: Settings) -> Judgement:
    return judge(measured, configured(CONFIG), settings)


def test_all_ranks_return_the_same_measurements_of_everything(pool: Pool) -> None:
    results = pool.run(measured_with, "mm", -1, SETTINGS, timeout_seconds=TIMEOUT_SECONDS)
    first = results[0]
    assert all(result == first for result in results)
    assert [place.rank for place in first.places] == [0, 1, 2, 3]
    assert first.neighbours == {"pp": ((0, 2), (1, 3)), "fsdp": ((0, 1), (2, 3))}
    assert len(first.rates) == 8
    judgement = judged(first, SETTINGS)
    swept = {(sweep.axis, sweep.operation) for sweep in judgement.sweeps}
    operations = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
    assert swept == {(axis, operation) for axis in ("pp", "fsdp") for operation in operations}
    assert all(sweep.ranks == 2 and len(sweep.groups) == 2 for sweep in judgement.sweeps)
    assert all(sweep.fit is not None for sweep in judgement.sweeps)
    assert first.training is not None
    assert (first.training.schedule, first.training.microbatches) == ("1f1b", 4)
    assert [(stage.stage, stage.ranks) for stage in first.training.stages] == [(0, (0, 1)), (1, (2, 3))]
    assert first.training.theory_ratio == pytest.approx(1 / 5)
    assert judgement.prediction is not None
    assert judgement.pipeline is not None


@pytest.mark.parametrize(("slow", "kind"), [("mm", Kind.SLOW_PRODUCTS), ("send", Kind.SLOW_MESSAGES)])
def test_a_slow_rank_is_named(pool: Pool, slow: str, kind: Kind) -> None:
    settings = Settings(steps=0, repeats=2)
    measured = pool.run(measured_with, slow, 2, settings, timeout_seconds=TIMEOUT_SECONDS)[0]
    judgement = judged(measured, settings)
    assert [(finding.kind, finding.ranks) for finding in judgement.findings] == [(kind, (2,))]
    assert not judgement.passed


TOML = """
[model]
layers = 4
hidden = 32
heads = 2
kv_heads = 2
ffn = 64
sequence = 16
[parallel]
pp = 2
microbatches = 2
[train]
batch = 4
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(TOML)
    return path


def run(*words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, env=environment)


def test_the_command_starts_the_ranks_and_answers_in_json(config: Path) -> None:
    done = run(
        *(sys.executable, "-m", "traincope", "preflight", config),
        *("--steps", 0, "--repeats", 2, "--format", "json"),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["passed"], document["comparable"]) == (True, False)
    assert [rank["rank"] for rank in document["hosts"][0]["ranks"]] == [0, 1]
    assert (document["training"], document["pipeline"]) == (None, None)
    assert "0 steps" not in done.stderr


def test_under_torchrun_an_alarm_fails_the_job_and_no_host(config: Path, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    torchrun = Path(sys.executable).parent / "torchrun"
    done = run(
        *(torchrun, "--standalone", "--nproc-per-node", 2, "-m", "traincope", "preflight", config),
        *("--steps", 5, "--repeats", 2, "--alarm", 1, "--format", "hosts", "--node-reports", reports),
    )
    host = os.uname().nodename
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == f"PASS {host}"
    assert "FAIL job: pipeline_bubble" in lines  # A busy machine may also make a stage slow.
    report = json.loads((reports / f"{host}.json").read_text())
    assert (report["passed"], len(report["ranks"])) == (True, 2)


def test_reports_that_cannot_be_written_are_refused_before_anything_is_measured(config: Path) -> None:
    done = run(
        *(sys.executable, "-m", "traincope", "preflight", config),
        *("--steps", 0, "--repeats", 2, "--node-reports", config / "reports"),
    )
    assert done.returncode == 2
    (sentence, *_) = [line for line in done.stderr.splitlines() if line.startswith("traincope preflight: cannot write")]
    assert sentence.endswith("give another --node-reports")
    assert "measuring" not in done.stderr
