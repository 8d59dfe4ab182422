"""Real transfers of two axes at the same time: the analysis finds which transfers overlapped."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import traincope
from tests.distributed.ranks.pool import Pool

STEPS = 4
LARGE, SMALL = 4 << 20, 1 << 12


def exchange(directory: str) -> None:
    """In each step: two small all-reduces alone, and one during a large one of the other axis."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    large, small = torch.ones(LARGE), torch.ones(SMALL)
    with traincope.run(directory) as run:
        for _ in range(STEPS):
            for _ in range(2):
                dist.all_reduce(small, group=mesh.get_group("tp"))
            dist.barrier()
            under_way = dist.all_reduce(large, group=mesh.get_group("fsdp"), async_op=True)
            dist.all_reduce(small, group=mesh.get_group("tp"))
            under_way.wait()
            run.step()


def test_a_transfer_that_overlaps_another_axis_is_compared_with_equal_transfers_alone(
    four_ranks: Pool, tmp_path: Path
) -> None:
    four_ranks.run(exchange, str(tmp_path / "run"))
    (row,) = (row for row in traincope.analyze(traincope.open_run(tmp_path / "run")).comm if row.axis == "tp")
    (overlap,) = row.contention
    assert overlap.axis == "fsdp"
    assert 0 < overlap.count <= 4 * (STEPS - 1)
    assert overlap.compared == overlap.count
    assert overlap.extra_ns is not None
