"""A launch file that a real SLURM runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launchers.slurm import slurm
from tests.ports import free_port
from traincope.events import CLEAN
from traincope.store import read_run

TRAINING = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("arguments", sys.argv[1:])
dist.destroy_process_group()
"""


@pytest.mark.launchers
@pytest.mark.timeout(600)
def test_slurm_runs_a_launch_file_of_any_torchrun_command(tmp_path: Path) -> None:
    """SLURM counts two GPUs; the training uses gloo."""
    work = tmp_path / "my work"
    work.mkdir()
    (work / "train.py").write_text(TRAINING)
    torchrun = ("torchrun", "--nproc-per-node", "2", "train.py", "--name", "it's mine")
    port = str(free_port())  # another training of this machine may have the default one
    file = ("launch-file", "slurm", "--port", port, "--out", "run", "-o", "job.sbatch", "--", *torchrun)
    subprocess.run([sys.executable, "-m", "traincope", *file], cwd=work, check=True)
    with slurm(tmp_path, tracking="pgid") as variables:
        path = f"{Path(sys.executable).parent}:{variables['PATH']}"
        job = subprocess.run(
            ["sbatch", "--wait", "-o", "out.txt", "job.sbatch"],
            env={**os.environ, **variables, "PATH": path, "OMP_NUM_THREADS": "1"},
            cwd=work,
            check=False,
            timeout=500,
        )
    printed = (work / "out.txt").read_text()
    assert job.returncode == 0, printed
    assert printed.count("""arguments ['--name', "it's mine"]""") == 2
    assert "traincope: recorded 2 ranks in run\n" in printed
    run = read_run(work / "run")
    assert (run.info.id, run.info.world_size) == ("run", 2)
    assert [rank.info.ending for rank in run.ranks] == [CLEAN, CLEAN]
