"""`traincope profile` on a running job of real ranks, and its errors."""

import inspect
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.distributed.ranks.pool import Pool
from tests.live.processes import until
from tests.live.recorded import record
from traincope.analysis import analyze
from traincope.analysis.faults.slow_code import Line
from traincope.cli.main import main
from traincope.record.session import sampling
from traincope.store.job.requesting import job_progress
from traincope.store.layout import REQUESTS_FILE

STEP_SECONDS = 0.02


class Block(nn.Module):
    """A block that is slow on some ranks."""

    def __init__(self, slow: tuple[int, ...]) -> None:
        super().__init__()
        self.linear, self.slow = nn.Linear(8, 8), slow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() in self.slow:
            time.sleep(STEP_SECONDS)  # as a slow kernel
        y: torch.Tensor = self.linear(x)
        return y


def train(directory: str, stop: str, level: int, slow: tuple[int, ...] = ()) -> None:
    """DDP with detail in the first block only, until a file exists. The second block is slow on the ranks `slow`."""
    usual = sampling.is_window
    sampling.is_window = lambda block, **_: block == 0
    try:
        with traincope.run(directory, level=level) as run:
            blocks = nn.Sequential(Block(()), Block(slow))
            model = DistributedDataParallel(blocks, process_group=dist.new_group())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            stopping = torch.zeros(1)
            while not stopping:
                time.sleep(STEP_SECONDS)
                run.step()
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                stopping = torch.tensor([float(os.path.exists(stop))])
                dist.all_reduce(stopping)
    finally:
        sampling.is_window = usual


@contextmanager
def running(pool: Pool, tmp_path: Path, *, level: int = 1, slow: tuple[int, ...] = ()) -> Iterator[Path]:
    """The run directory of a training that has made some steps and ends with the block."""
    run, stop = tmp_path / "run", tmp_path / "stop"
    training = threading.Thread(target=pool.run, args=(train, str(run), str(stop), level, slow))
    training.start()
    try:
        until(lambda: _steps(run) > 10, "the first steps")
        yield run
    finally:
        stop.touch()
        training.join()


def _steps(run: Path) -> int:
    if not (run / "attempt-000" / "rank-00001" / "rank.json").exists():
        return 0
    return job_progress(run, attempt=0).behind_step or 0


def profile(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["profile", *words])
    return int(str(ended.value.code))


def test_a_running_job_without_detail_gets_its_window(
    two_ranks: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(two_ranks, tmp_path) as run:
        assert profile(str(run), "--steps", "20", "--kernels") == 0
    printed = capsys.readouterr().out
    timeline = traincope.open_run(run)
    (request,) = timeline.run.requests
    asked = set(range(request.first_step + 1, request.first_step + 21))
    for rank in timeline.ranks:
        detailed = {step.number for step in rank.steps if step.detailed}
        assert asked <= detailed
        assert detailed - set(range(8)) == set(timeline.requested_steps)
    assert f"Recorded in detail: steps {min(asked)} to {max(asked)}.\n" in printed
    assert "Kernel traces: 40 files kernels-step-*.json" in printed
    assert f"traincope view {run}      shows them at the address /timeline?step={min(asked)}" in printed


@pytest.mark.parametrize("slow", [(1,), pytest.param((), marks=pytest.mark.sweep)])
def test_stacks_of_two_ranks_name_the_line_that_is_slow_on_one(
    slow: tuple[int, ...], two_ranks: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 waits for rank 1 in its backward, which is not called slow."""
    with running(two_ranks, tmp_path, slow=slow) as run:
        assert profile(str(run), "--steps", "60", "--stacks", "1", "0") == 0
    assert "Stacks of ranks 0, 1: the report compares them under SAMPLED STACKS.\n" in capsys.readouterr().out
    (window,) = analyze(traincope.open_run(run)).sampled_windows
    assert window.ranks == (0, 1)
    assert window.steps >= 60
    line = inspect.getsourcelines(Block.forward)[1] + 2
    expected = Line(
        site=f"test_profile.py:{line}", function="Block.forward", called="time.sleep", module="module.1", term="forward"
    )
    assert [(code.rank, code.line) for code in window.slow] == [(rank, expected) for rank in slow]


def test_a_run_at_level_0_is_refused_with_the_remedy(
    two_ranks: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(two_ranks, tmp_path, level=0) as run:
        assert profile(str(run)) == 2
    assert f"records level 0, which has no detail; raise the level first: echo 1 > {run}/level" in (
        capsys.readouterr().err
    )
    assert not (run / REQUESTS_FILE).exists()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["nowhere"], 4, "nowhere does not exist; give the directory"),
        (["run"], 4, "is not running: all its ranks have ended"),
        (["run", "--steps", "0"], 2, "0 is not a number of steps; give 1 to 1000, e.g. 20"),
        (["run", "--stacks", "-1"], 2, "-1 is not a rank; give a number from 0, e.g. 1"),
        (["run", "--stacks", "0", "3"], 2, "has no rank 3; give --stacks ranks from 0 to 0"),
        (["run", "--steps", "65", "--kernels"], 2, "a run traces the kernels of at most 64 steps"),
    ],
)
def test_bad_input_is_one_sentence_and_its_exit_code(
    words: list[str],
    code: int,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "run", monkeypatch)
    assert profile(*words) == code
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run" / REQUESTS_FILE).exists()
