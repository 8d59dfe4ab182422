from pathlib import Path

import pytest

from traincope.record.identity import claim_rank_directory, identify

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "job-7", "TORCHELASTIC_RESTART_COUNT": "2"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "99"}


@pytest.mark.parametrize(
    ("environment", "rank", "world_size", "run_id", "attempt"),
    [
        (TORCHRUN, 3, 8, "job-7", 2),
        (SLURM, 1, 4, "slurm-99", 0),
        (TORCHRUN | SLURM, 3, 8, "slurm-99", 2),
    ],
)
def test_identity_comes_from_the_launcher(
    environment: dict[str, str], rank: int, world_size: int, run_id: str, attempt: int
) -> None:
    identity = identify(environment)
    assert (identity.rank, identity.world_size) == (rank, world_size)
    assert (identity.run_id, identity.first_attempt) == (run_id, attempt)


def test_without_a_launcher_the_rank_is_not_known_yet() -> None:
    identity = identify({})
    assert (identity.rank, identity.world_size) == (None, 1)


def test_local_ranks_of_a_torchrun_without_an_id_agree() -> None:
    unnamed = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}
    assert identify(unnamed).run_id == identify(unnamed | {"RANK": "1"}).run_id


def test_a_restarted_rank_takes_the_next_attempt(tmp_path: Path) -> None:
    assert claim_rank_directory(tmp_path, rank=1, first_attempt=0)[0] == 0
    attempt, directory = claim_rank_directory(tmp_path, rank=1, first_attempt=0)
    assert attempt == 1
    assert directory == tmp_path / "attempt-001" / "rank-00001"
    assert claim_rank_directory(tmp_path, rank=0, first_attempt=1)[0] == 1
