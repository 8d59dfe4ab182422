"""`traincope demo` and `traincope train`, whole, under real torchrun; in one run a rank is killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_commands import ENVIRONMENT, run
from tests.distributed.selection import swept

DEMO = Path(__file__).parents[3] / "examples" / "demo.toml"
SMALL = ("--set", "model.layers=2", "--set", "model.hidden=32", "--set", "model.ffn=64", "--set", "model.heads=4")


MESHES = {4: {"pp": 2, "fsdp": 2}, 8: {"pp": 2, "fsdp": 2, "tp": 2}}
BUBBLES = {4: 1 / 9, 8: 1 / 5}
"""The bubble of 1F1B with two stages, by number of ranks: 8 microbatches with four ranks, 4 with eight."""


@pytest.mark.sweep
def test_the_demo_with_reinforcement_shows_the_parts_of_its_steps(tmp_path: Path) -> None:
    """Rank 1 sleeps 0.1 s in each reward, rank 0 0.02 s: at least."""
    out = tmp_path / "demo"
    ended = run("demo", "--rl", "--steps", "4", "--out", str(out), timeout=300)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(run("report", str(out), "--format", "json").stdout)
    for rank, least_ns in zip(document["ledger"]["ranks"], (0.02e9, 0.1e9), strict=True):
        assert rank["terms"]["reward"] >= rank["steps"] * least_ns
    terms = document["ledger"]["terms"]
    assert all(terms[term] for term in ("generate", "reward", "logprob", "advantage", "forward", "backward"))
    for rank in document["ledger"]["ranks"]:
        assert sum(ns for ns in rank["terms"].values() if ns is not None) == rank["wall_ns"]


@pytest.mark.parametrize("ranks", swept([4, 8], but=[4]))
def test_the_demo_trains_and_prints_where_the_time_went(tmp_path: Path, ranks: int) -> None:
    ended = run("demo", "--ranks", str(ranks), "--steps", "3", "--out", str(tmp_path / "demo"), timeout=150)
    assert ended.returncode == 0, ended.stderr
    for expected in (
        f"{ranks} ranks ({' x '.join(f'{axis} {size}' for axis, size in MESHES[ranks].items())})",
        "VERDICT",
        "bubble.schedule",
        f" report {tmp_path / 'demo'}",
    ):
        assert expected in ended.stdout
    document = json.loads(run("report", str(tmp_path / "demo"), "--format", "json").stdout)
    assert document["run"]["mesh_axes"] == MESHES[ranks]
    assert document["run"]["steps"] == 2
    assert document["bubble"]["schedule"] == "1f1b"
    assert document["bubble"]["theory_ratio"] == pytest.approx(BUBBLES[ranks])
    for rank in document["ledger"]["ranks"]:
        assert sum(ns for ns in rank["terms"].values() if ns is not None) == rank["wall_ns"]
    assert {row["axis"] for row in document["comm"]} == {*MESHES[ranks], "world"}
    used = document["utilization"]
    assert used["flops_convention"] == "by the model's formula, causal attention halved"
    parts = sum(used[f"{part}_flops_per_step"] for part in ("model", "recomputed", "redundant"))
    assert parts == pytest.approx(used["executed_flops_per_step"])
    assert 0 < used["redundant_flops_per_step"] < 0.02 * used["model_flops_per_step"]


@pytest.mark.sweep
def test_after_kill_9_of_a_rank_the_report_shows_it_up_to_the_kill(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", str(DEMO), "--out", str(out), "--set", "train.steps=5000", "--set", "parallel.fsdp=1", *SMALL]
    training = subprocess.Popen(
        [sys.executable, "-m", "traincope.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        victim = wait_for_steps(out, steps=20)
        os.kill(victim, signal.SIGKILL)
        _, errors = training.communicate(timeout=150)
    finally:
        training.kill()
    assert training.returncode == 7
    assert "rank 1 was killed by SIGKILL" in errors
    document = json.loads(run("report", str(out), "--format", "json").stdout)
    first = document["verdict"][0]
    assert (first["kind"], first["ranks"]) == ("killed_rank", [1])
    assert document["run"]["missing_ranks"] == []
    assert document["recorder"]["problems"] == []
    (fault,) = [fault for fault in document["faults"] if fault["ranks"] == [1] and fault["kind"] == "killed"]
    assert (fault["what"], fault["follows"]) == ("was killed (signal 9), noted by the launcher", False)
    assert document["run"]["steps"] >= 19
    assert first["steps"][0] >= 20


def wait_for_steps(out: Path, *, steps: int) -> int:
    """Process id of rank 1, once it has recorded that many steps: the run is read while it is written."""
    import traincope

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if not (out / "attempt-000" / "rank-00001" / "main-00000.seg").exists():
            continue
        timeline = traincope.open_run(out)
        (rank,) = [rank for rank in timeline.ranks if rank.rank == 1] or [None]
        if rank is not None and len(rank.steps) >= steps:
            return timeline.run.ranks[[r.rank for r in timeline.run.ranks].index(1)].info.pid
    raise AssertionError("the training did not come to its steps")
