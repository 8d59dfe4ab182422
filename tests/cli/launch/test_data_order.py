"""Restarted trainings on two ranks whose data goes on right, too early, or too late: the report finds what was done."""

import json
from pathlib import Path
from typing import Any

import pytest

import traincope
from tests.cli.launch.test_restarts import CONFIG
from traincope.analysis import FaultKind, analyze
from traincope.analysis.faults.anomalies.data_order import Order
from traincope.engine.launch import Launch, launch
from traincope.store.job.launcher import notes_path

RIGHT, AGAIN, SKIPPED = (Order.RIGHT, None), (Order.FED_AGAIN, 2), (Order.SKIPPED, 1)


def assert_found(run: Path, expected: tuple[Order, int | None]) -> None:
    analysis = analyze(traincope.open_run(run))
    assert analysis.data_order is not None
    found = [(each.ranks, each.order, each.num_batches) for each in analysis.data_order.continuations]
    assert found == [((0, 1), *expected)]
    kinds = {fault.kind for fault in analysis.faults} & {FaultKind.DATA_FED_AGAIN, FaultKind.DATA_SKIPPED}
    assert kinds == (set() if expected == RIGHT else {f"data_{expected[0]}"})


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("begins", "expected"), [(4, RIGHT), (2, AGAIN), (5, SKIPPED)])
def test_a_plain_data_loader(tmp_path: Path, begins: int, expected: tuple[Order, int | None], workers: int) -> None:
    """The first attempt fails after 6 steps; the second continues after step 4."""
    run = tmp_path / "run"
    settings = {"OUT": run, "CONTINUES": 4, "BEGINS": begins, "FAILS": 6, "WORKERS": workers}
    environment = {name: str(value) for name, value in settings.items()}
    module = "tests.cli.launch.misfed_worker"
    launch(Launch(ranks=2, max_restarts=1, module=module, notes=notes_path(run), environment=environment))
    assert_found(run, expected)


@pytest.mark.parametrize(
    ("moved", "expected"),
    [
        pytest.param(0, RIGHT, marks=pytest.mark.sweep),
        pytest.param(-2, AGAIN, marks=pytest.mark.sweep),
        pytest.param(1, SKIPPED, marks=pytest.mark.sweep),
    ],
)
def test_the_engine(tmp_path: Path, moved: int, expected: tuple[Order, int | None]) -> None:
    """Rank 0 is killed in the checkpoint of step 6, so the second attempt continues after step 4."""
    (tmp_path / "text").write_text("\n".join(f"{n} squared is {n * n}" for n in range(200)))
    (tmp_path / "config.toml").write_text(CONFIG.format(text=tmp_path / "text"))
    run, kills = tmp_path / "run", [{"rank": 0, "saving": 6}]
    environment: dict[str, Any] = {
        "KILLED": json.dumps(kills),
        "STEPS_LOG": str(tmp_path / "log"),
        "MOVED_BATCHES": str(moved),
    }
    launch(
        Launch(
            ranks=2,
            arguments=(str(tmp_path / "config.toml"), "--out", str(run), "--set", "train.evaluate_every=2"),
            max_restarts=1,
            module="tests.cli.launch.killed_worker",
            notes=notes_path(run),
            environment=environment,
        )
    )
    assert_found(run, expected)
