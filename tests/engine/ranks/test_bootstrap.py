"""Worker's reading of torchrun's environment."""

import pytest

from traincope.engine.ranks.bootstrap import WorkerEnvironment
from traincope.errors import TrainingError

ENVIRON = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TRAINCOPE_FIRST_ATTEMPT": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_the_worker_reads_torchruns_environment() -> None:
    assert WorkerEnvironment.read(ENVIRON) == WorkerEnvironment(
        rank=5,
        local_rank=1,
        world_size=8,
        master_address="localhost",
        master_port=29500,
        attempt=2,
        earlier_attempts=3,
        agent_has_store=True,
    )


def test_another_launcher_has_no_store_and_no_restarts() -> None:
    environment = WorkerEnvironment.read({k: v for k, v in ENVIRON.items() if not k.startswith("TORCHELASTIC")})
    assert (environment.attempt, environment.agent_has_store) == (0, False)


def test_without_a_launcher_the_error_names_the_remedy() -> None:
    with pytest.raises(TrainingError) as refused:
        WorkerEnvironment.read({})
    assert str(refused.value) == "RANK is not set; start workers through `traincope train` or torchrun"


def test_a_rank_that_is_not_a_number_is_reported() -> None:
    with pytest.raises(TrainingError, match="are not numbers"):
        WorkerEnvironment.read(ENVIRON | {"RANK": "zero"})
