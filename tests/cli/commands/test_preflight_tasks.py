"""Variables of a rank that srun starts, from SLURM's. Under a real srun: tests/launchers/test_preflight.py."""

import pytest

from traincope.cli.preflight.slurm_task import first_host, variables_of_task

TASK = {
    "SLURM_JOB_ID": "1203",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_NODELIST": "gpu-[017-018]",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
}


def test_a_task_is_the_rank_of_its_number() -> None:
    assert variables_of_task(TASK) == {
        "RANK": "9",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "16",
        "MASTER_ADDR": "gpu-017",
        "MASTER_PORT": str(20_000 + (1203 * 17 + 2) % 10_000),
    }


def test_a_given_address_stays() -> None:
    task = variables_of_task({**TASK, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    assert (task["MASTER_ADDR"], task["MASTER_PORT"]) == ("10.0.0.1", "29500")


@pytest.mark.parametrize("change", [{"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": ""}])
def test_a_single_task_starts_all_ranks_itself(change: dict[str, str]) -> None:
    """As outside of SLURM, and in the script of sbatch, which srun did not start."""
    environment = {name: value for name, value in {**TASK, **change}.items() if value}
    assert variables_of_task(environment) == {}


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("a[3-5,9]", "a3"),
        ("a[09,11],b[1-2]", "a09"),
        ("n[1-2]-ib", "n1-ib"),
        ("x-1,y", "x-1"),
    ],
)
def test_the_first_host_of_a_list(names: str, first: str) -> None:
    assert first_host(names) == first
