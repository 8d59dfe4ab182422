"""The mesh that a run has, if a training views its ranks by several."""

from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import traincope
from tests.distributed.ranks.pool import Pool


def sharded_with_a_mesh_of_experts(directory: str) -> None:
    """As torchtitan without experts: the newer mesh has more axes, and nothing is sent on them."""
    with traincope.run(directory) as run:
        run.step()
        dense = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp_replicate", "fsdp"))
        sparse = init_device_mesh("cpu", (1, 2, 1), mesh_dim_names=("dp_replicate", "efsdp", "ep"))
        shards = dense["fsdp"]
        dist.barrier(group=shards.get_group())
        assert sparse.size() == shards.size()


def test_a_mesh_whose_axes_have_collectives_wins(tmp_path: Path) -> None:
    """Runs in processes of its own: torch keeps the meshes of earlier trainings."""
    pool = Pool(2)
    pool.run(sharded_with_a_mesh_of_experts, str(tmp_path / "run"))
    pool.stop()
    timeline = traincope.open_run(tmp_path / "run")
    assert timeline.run.info.mesh == {"dp_replicate": 1, "fsdp": 2}
    assert timeline.ranks[1].coords == {"dp_replicate": 0, "fsdp": 1}
