"""`traincope preflight` under a real srun: two tasks are two ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launchers.slurm import slurm

CONFIG = """
[model]
layers = 2
hidden = 32
heads = 2
kv_heads = 2
ffn = 64
sequence = 16
[parallel]
dp = 2
[train]
batch = 4
"""


@pytest.mark.launchers
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("by_torchrun", [False, True], ids=["tasks", "torchrun"])
def test_two_tasks_of_srun_measure_each_other(by_torchrun: bool, tmp_path: Path) -> None:
    """Each task is a rank, or each starts a torchrun with one. Rank 0 alone prints, and srun has its exit code."""
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    command = [*("-m", "traincope", "preflight"), str(config), "--steps", "6", "--repeats", "2", "--format", "json"]
    with slurm(tmp_path) as variables:
        words = [sys.executable, *command]
        if by_torchrun:
            rendezvous = f"127.0.0.1:{variables['MASTER_PORT']}"
            torchrun = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
            words = [sys.executable, *torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", rendezvous, *command]
        else:  # As in a job without them: the address follows from SLURM's variables.
            variables = {name: value for name, value in variables.items() if not name.startswith("MASTER_")}
        answered = subprocess.run(
            ["srun", "-n", "2", *words],
            env={**os.environ, **variables, "OMP_NUM_THREADS": "1", "TRAINCOPE_AGENT": "off"},
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
    assert answered.stdout.startswith("{"), answered.stderr
    answer = json.loads(answered.stdout)
    ranks = [rank for host in answer["hosts"] for rank in host["ranks"]]
    assert sorted(rank["rank"] for rank in ranks) == [0, 1]
    assert {tuple(pair["ranks"]) for pair in answer["pairs"][0]["messages"]} == {(0, 1)}
    assert answered.returncode == (0 if answer["passed"] else 1), answered.stderr


@pytest.mark.launchers
@pytest.mark.timeout(1000)
def test_a_wrong_number_of_tasks_is_bad_input(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG.replace("dp = 2", "dp = 4").replace("batch = 4", "batch = 8"))
    with slurm(tmp_path) as variables:
        answered = subprocess.run(
            ["srun", "-n", "2", sys.executable, "-m", "traincope", "preflight", str(config)],
            env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
    assert "dp 4 = 4 ranks, but there are 2" in answered.stderr
    assert answered.returncode == 2
