"""Trainings of two ranks under real frameworks, without a callback and with it, and what they recorded."""

import json
import os
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.environments import python_of
from traincope.analysis import analyze
from traincope.events import Kind
from traincope.report.document.document import to_document, to_json
from traincope.timeline import Timeline, open_run

PROGRAMS = Path(__file__).parent / "programs"
PLAIN, RECORDED, JOINED, FAILS = "plain", "recorded", "joined", "fails"
TIMEOUT_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training that has ended."""

    folder: Path
    results: tuple[dict[str, Any], ...]
    """Weights and losses of each rank."""

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def timeline(self) -> Timeline:
        return open_run(self.run)

    @property
    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        document: dict[str, Any] = json.loads(to_json(to_document(analyze(self.timeline))))
        return document


def train(
    folder: Path,
    environment: str,
    program: str,
    mode: str,
    *,
    tracker: str = "none",
    under: bool = False,
    own_launcher: bool = False,
    **more: str,
) -> Training:
    """Train with two ranks of torchrun, or of the program itself (`own_launcher`), which then writes no results.

    `under`: `traincope run` observes too. `more`: environment variables.
    """
    python = python_of(environment)
    if not python.exists():
        pytest.skip(f"the environment {environment} is not there; `make test-integrations` makes it")
    folder.mkdir(parents=True, exist_ok=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [str(python), *([] if own_launcher else launcher)]
    if under:
        command = [str(python), "-m", "traincope.cli.main", "run", "--out", str(folder / "run"), "--", *command]
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TRAINCOPE_OUT": str(folder / "run"),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "DS_ACCELERATOR": "cpu",
        **more,
    }
    program_path = str(PROGRAMS / f"{program}.py")
    ended = subprocess.run(
        [*command, program_path, str(folder), mode, tracker],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env=variables,
    )
    assert (ended.returncode == 0) is (mode != FAILS), ended.stderr[-8000:]
    assert "traincope:" not in ended.stderr or under, ended.stderr[-8000:]
    paths = [folder / f"result-{rank}.json" for rank in (0, 1)]
    results = () if mode == FAILS or own_launcher else tuple(json.loads(path.read_text()) for path in paths)
    return Training(folder=folder, results=results)


def logged(timeline: Timeline, rank: int) -> dict[str, dict[int, list[float]]]:
    """Name -> step -> values that the rank logged."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    (recorded,) = (each for each in timeline.ranks if each.rank == rank)
    scalars = recorded.of_kind(Kind.SCALAR)
    for name, step, value in zip(scalars["name"], scalars["step"], scalars["value"].view("float64"), strict=True):
        found[recorded.name(int(name))][int(step)].append(float(value))
    return {name: dict(steps) for name, steps in found.items()}


def step_numbers(timeline: Timeline) -> list[list[int]]:
    """Numbers of the complete steps of each rank."""
    return [[step.number for step in rank.steps] for rank in timeline.ranks]


def settings(timeline: Timeline) -> dict[str, Any]:
    return dict(timeline.run.info.settings)


def tokens_per_step(document: dict[str, Any]) -> float:
    """Tokens per step, from the report's rate and its step time."""
    ledger = document["ledger"]
    rate: float = document["utilization"]["tokens_per_second"]
    return rate * ledger["wall_ns"] / 1e9 / ledger["rank_steps"]


def faults(document: dict[str, Any]) -> list[str]:
    """Kinds of the faults. A busy machine makes steps slow."""
    kinds: list[str] = [fault["kind"] for fault in document["faults"] if not fault["mark"]]
    return [kind for kind in kinds if kind not in ("slow_step", "step_time_change")]
