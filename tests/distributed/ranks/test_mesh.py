"""Places of four ranks on a mesh, drawn on paper."""

import torch
import torch.distributed as dist

from tests.distributed.ranks.pool import Pool
from traincope.engine.config import ParallelConfig
from traincope.engine.ranks.mesh import Layout, build_layout

CPU = torch.device("cpu")


def place(config: ParallelConfig) -> tuple[tuple[str, ...], int, int]:
    """This rank's mesh axes, its stage, and its slice of the batch."""
    layout = build_layout(config, device=CPU)
    assert layout.mesh is not None
    return layout.mesh.mesh_dim_names or (), layout.coordinate("pp"), layout.replica


def test_stages_are_the_outer_axis(four_ranks: Pool) -> None:
    axes = ("pp", "fsdp")
    assert four_ranks.run(place, ParallelConfig(pp=2, fsdp=2)) == [
        (axes, 0, 0),
        (axes, 0, 1),
        (axes, 1, 0),
        (axes, 1, 1),
    ]


def test_shards_of_one_replica_are_neighbours(four_ranks: Pool) -> None:
    axes = ("dp_replicate", "fsdp")
    places = four_ranks.run(place, ParallelConfig(dp_replicate=2, fsdp=2))
    assert places == [(axes, 0, 0), (axes, 0, 1), (axes, 0, 2), (axes, 0, 3)]


def places_of_parameters(config: ParallelConfig) -> tuple[tuple[str, ...], str, int, int, int]:
    """This rank's mesh axes, the axis of its shards, and its place along that axis, cp and tp."""
    layout = build_layout(config, device=CPU)
    assert layout.mesh is not None
    axis = layout.shard_axis
    sharing = dist.get_process_group_ranks(layout.group(axis))
    assert sharing[layout.coordinate(axis)] == dist.get_rank()
    return layout.mesh.mesh_dim_names or (), axis, *(layout.coordinate(each) for each in (axis, "cp", "tp"))


def test_shards_lie_over_fsdp_and_cp_as_one_axis(four_ranks: Pool) -> None:
    axes = (("fsdp", "cp"), "fsdp_cp")
    assert four_ranks.run(places_of_parameters, ParallelConfig(fsdp=2, cp=2)) == [
        (*axes, 0, 0, 0),
        (*axes, 1, 1, 0),
        (*axes, 2, 0, 0),
        (*axes, 3, 1, 0),
    ]


def test_cp_alone_shards_parameters_too_and_tp_is_the_inner_axis(four_ranks: Pool) -> None:
    axes = (("cp", "tp"), "fsdp_cp")
    assert four_ranks.run(places_of_parameters, ParallelConfig(cp=2, tp=2)) == [
        (*axes, 0, 0, 0),
        (*axes, 0, 0, 1),
        (*axes, 1, 1, 0),
        (*axes, 1, 1, 1),
    ]


def places_of_replicas(config: ParallelConfig) -> tuple[tuple[str, ...], str, bool, int, int]:
    """This rank's mesh axes, the axis of its replicas, whether FSDP has shards, its place, and its slice."""
    layout = build_layout(config, device=CPU)
    assert layout.mesh is not None
    axis = layout.replica_axis
    replicas = dist.get_process_group_ranks(layout.group(axis))
    assert replicas[layout.coordinate(axis)] == dist.get_rank()
    return layout.mesh.mesh_dim_names or (), axis, layout.sharded, layout.coordinate(axis), layout.replica


def test_replicas_lie_over_dp_and_cp_as_one_axis_whose_neighbours_have_the_same_sequences(four_ranks: Pool) -> None:
    axes = (("dp", "cp"), "dp_cp", False)
    assert four_ranks.run(places_of_replicas, ParallelConfig(dp=2, cp=2)) == [
        (*axes, 0, 0),
        (*axes, 1, 0),
        (*axes, 2, 1),
        (*axes, 3, 1),
    ]


def test_axes_of_one_rank_are_left_out(four_ranks: Pool) -> None:
    assert four_ranks.run(place, ParallelConfig(pp=4, microbatches=4)) == [(("pp",), rank, 0) for rank in range(4)]


def test_a_single_rank_has_no_mesh_and_the_whole_batch() -> None:
    layout = Layout(mesh=None)
    assert (layout.size("fsdp"), layout.coordinate("pp"), layout.replica, layout.group("dp")) == (1, 0, 0, None)
