import pytest

from traincope.record.session.identity import identify, this_node
from traincope.topology import ClusterNode, Scheduler

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "job-7", "TORCHELASTIC_RESTART_COUNT": "2"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "99"}


@pytest.mark.parametrize(
    ("environment", "rank", "world_size", "run_id", "restarts"),
    [
        (TORCHRUN, 3, 8, "job-7", 2),
        (SLURM, 1, 4, "slurm-99", 0),
        (TORCHRUN | SLURM, 3, 8, "slurm-99", 2),
        (TORCHRUN | SLURM | {"TRAINCOPE_RUN_ID": "mine"}, 3, 8, "mine", 2),
        (TORCHRUN | {"TRAINCOPE_RUN_ID": ""}, 3, 8, "job-7", 2),
    ],
)
def test_identity_comes_from_the_launcher(
    environment: dict[str, str], rank: int, world_size: int, run_id: str, restarts: int
) -> None:
    identity = identify(environment)
    assert (identity.rank, identity.world_size) == (rank, world_size)
    assert (identity.run_id, identity.restarts) == (run_id, restarts)


def test_only_restarts_that_the_launchers_store_outlives_count_for_it() -> None:
    """Two hosts of one attempt: the spare joined after two restarts of the other. Their store is new."""
    new = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}
    spare = new | {"TORCHELASTIC_RESTART_COUNT": "0"}
    assert identify(new).store_restarts == identify(spare).store_restarts == 0
    assert identify(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).store_restarts == 2


def test_without_a_launcher_the_rank_is_not_known_yet() -> None:
    identity = identify({})
    assert (identity.rank, identity.world_size) == (None, 1)


def test_local_ranks_of_a_torchrun_without_an_id_agree() -> None:
    unnamed = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}
    assert identify(unnamed).run_id == identify(unnamed | {"RANK": "1"}).run_id


@pytest.mark.parametrize("run_id", ["a/b", "..", ".hidden", "-o", "a b", "x" * 129, "caf\u00e9"])
def test_an_id_that_is_no_directory_name_is_ignored(run_id: str, caplog: pytest.LogCaptureFixture) -> None:
    assert identify(TORCHRUN | {"TRAINCOPE_RUN_ID": run_id}).run_id == "job-7"
    (message,) = caplog.messages
    assert message.startswith(f"{run_id!r} is not a run id")


@pytest.mark.parametrize(
    ("environment", "node"),
    [
        ({"SLURMD_NODENAME": "n17"}, ClusterNode(scheduler=Scheduler.SLURM, name="n17")),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "gpu-pool-3"},
            ClusterNode(scheduler=Scheduler.KUBERNETES, name="gpu-pool-3"),
        ),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "my-pod-0"}, None),
        ({"NODE_NAME": "agent-of-a-build-server"}, None),
        ({}, None),
    ],
)
def test_only_the_scheduler_names_its_node(environment: dict[str, str], node: ClusterNode | None) -> None:
    """A pod's host name is not that of its node."""
    assert this_node(environment) == node
