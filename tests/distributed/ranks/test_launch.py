"""Real torchrun: a failed training reports which rank ended and how, and a restarted one continues."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from traincope.engine.launch import Launch, launch, torchrun_arguments
from traincope.errors import ConfigError, DataError, TraincopeError, TrainingError

FAILING_WORKER = "tests.distributed.ranks.failing_worker"

SMALL = """
[model]
layers = 2
hidden = 32
heads = 2
kv_heads = 2
ffn = 64
sequence = 16
[parallel]
fsdp = 2
[train]
batch = 8
evaluate_every = 20
"""


def progress_lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def workers_of_rank(rank: int, *, progress: Path) -> Iterator[int]:
    """Processes of the training that reports to `progress`, by command line and environment."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = process.joinpath("cmdline").read_bytes().split(b"\0")
            environment = process.joinpath("environ").read_bytes().split(b"\0")
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
        if str(progress).encode() in arguments and f"RANK={rank}".encode() in environment:
            yield int(process.name)


def wait_for_step(step: int, *, progress: Path, training: threading.Thread) -> None:
    while not any(line["step"] >= step for line in progress_lines(progress)):
        assert training.is_alive(), f"the training ended before step {step}"
        time.sleep(0.05)


def test_launch_builds_torchruns_command_line() -> None:
    job = Launch(ranks=4, arguments=("demo.toml", "--out", "runs/demo"), max_restarts=2)
    assert torchrun_arguments(job) == [
        "--standalone",
        "--nproc-per-node=4",
        "--max-restarts=2",
        "--module",
        "traincope.cli.launch.worker",
        "demo.toml",
        "--out",
        "runs/demo",
    ]


@pytest.mark.parametrize(
    ("ending", "kind", "sentence"),
    [
        (
            ("1", "kill"),
            TrainingError,
            "rank 1 was killed by SIGKILL; unless you stopped it yourself, see dmesg for the out-of-memory killer",
        ),
        pytest.param(
            *(("0", "exit", "9"), TrainingError, "rank 0 exited with code 9; its last output is above"),
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            *(("1", "exit", "3"), ConfigError, "the training was refused; the reason is above"), marks=pytest.mark.sweep
        ),
        (("0", "exit", "6"), DataError, "the training was refused; the reason is above"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_a_failed_rank_is_reported(ending: tuple[str, ...], kind: type[TraincopeError], sentence: str) -> None:
    with pytest.raises(TraincopeError) as failed:
        launch(Launch(ranks=2, arguments=ending, module=FAILING_WORKER))
    assert type(failed.value) is kind
    assert str(failed.value) == sentence


@pytest.mark.sweep
def test_a_worker_refuses_a_layout_of_another_size(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "training.toml"
    config.write_text(SMALL)
    with pytest.raises(ConfigError):
        launch(Launch(ranks=1, arguments=(str(config), "--out", str(tmp_path / "run"))))
    assert (
        "error: fsdp 2 = 2 ranks, but there are 1; change a size in [parallel] or the number of ranks\n"
    ) in capfd.readouterr().err


@pytest.mark.sweep
def test_a_worker_refuses_missing_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "training.toml"
    config.write_text(SMALL)
    arguments = (str(config), "--set", "data.path=/nowhere", "--out", str(tmp_path / "run"))
    with pytest.raises(DataError):
        launch(Launch(ranks=2, arguments=arguments))
    assert "error: data.path /nowhere does not exist; " in capfd.readouterr().err


@pytest.mark.sweep
def test_a_training_continues_after_one_rank_was_killed(tmp_path: Path) -> None:
    config, progress = tmp_path / "training.toml", tmp_path / "progress.jsonl"
    config.write_text(SMALL)
    arguments = (str(config), "--set", "train.steps=40", "--out", str(tmp_path / "run"), "--progress", str(progress))
    failures: list[TraincopeError] = []

    def run() -> None:
        try:
            launch(Launch(ranks=2, arguments=arguments, max_restarts=1))
        except TraincopeError as error:
            failures.append(error)

    training = threading.Thread(target=run)
    training.start()
    wait_for_step(3, progress=progress, training=training)
    (victim,) = workers_of_rank(1, progress=progress)
    os.kill(victim, signal.SIGKILL)
    training.join()

    assert failures == []
    first, second = ([line for line in progress_lines(progress) if line["attempt"] == n] for n in (0, 1))
    losses = {line["step"]: line["loss"] for line in second if "loss" in line}
    assert list(losses) == list(range(1, 41))
    assert [line["step"] for line in second if "held_out_loss" in line] == [20, 40]
    assert {line["step"]: line["loss"] for line in first if "loss" in line}.items() < losses.items()
