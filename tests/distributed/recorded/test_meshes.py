"""The mesh that a run has, if a training views its ranks by several."""

from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import traincope
from tests.distributed.ranks.pool import Pool


def sharded_with_a_mesh_of_experts(directory: str) -> None:
    """As torchtitan without experts: the newer mesh has more axes, and their groups are fake."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend)

    with traincope.run(directory) as run:
        run.step()
        dense = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp_replicate", "fsdp"))
        sparse = init_device_mesh(
            "cpu",
            (1, 2, 1),
            mesh_dim_names=("dp_replicate", "efsdp", "ep"),
            backend_override=dict.fromkeys(("dp_replicate", "efsdp", "ep"), "fake"),
        )
        shards = dense["fsdp"]
        dist.barrier(group=shards.get_group())
        assert sparse.size() == shards.size()


def stages_with_and_without_experts(directory: str) -> None:
    """As torchtitan's model whose first stage is dense: only the second one uses the axis of experts."""
    with traincope.run(directory) as run:
        run.step()
        dense = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "fsdp"))
        sparse = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("pp", "efsdp", "ep"))
        dist.barrier(group=dense["fsdp"].get_group())
        if dist.get_rank() >= 2:
            dist.barrier(group=sparse["ep"].get_group())


def test_a_mesh_with_real_groups_wins(tmp_path: Path) -> None:
    """Runs in processes of its own: torch keeps the meshes of earlier trainings."""
    pool = Pool(2)
    pool.run(sharded_with_a_mesh_of_experts, str(tmp_path / "run"))
    pool.stop()
    timeline = traincope.open_run(tmp_path / "run")
    assert timeline.run.info.mesh == {"dp_replicate": 1, "fsdp": 2}
    assert timeline.ranks[1].coords == {"dp_replicate": 0, "fsdp": 1}


def test_ranks_that_use_different_axes_have_one_mesh(tmp_path: Path) -> None:
    pool = Pool(4)
    pool.run(stages_with_and_without_experts, str(tmp_path / "run"))
    pool.stop()
    timeline = traincope.open_run(tmp_path / "run")
    assert timeline.run.info.mesh == {"pp": 2, "efsdp": 1, "ep": 2}
    assert [rank.coords for rank in timeline.ranks] == [
        {"pp": rank // 2, "efsdp": 0, "ep": rank % 2} for rank in range(4)
    ]
