"""Experts under both `tp` and `ep`: each rank of both axes has some channels of some experts.

The ranks of `tp` have all the same tokens, because they route whole sequences alike (capacity and balance loss count
whole sequences). Each sends its share of each row's channels, so no number travels to an expert's rank twice, with or
without sequence parallelism. At the expert's rank the ranks of `tp` gather the rows, run their part of the expert, and
reduce-scatter the sum into shares, which return the same way. Megatron-Core's dispatcher sends as much, but sends some
of the tokens whole. There the number of tokens differs from rank to rank, and no rank knows whole sequences.
"""

import functools

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from traincope.engine.model.moe import Experts, MixtureOfExperts
from traincope.engine.model.slots import Slots
from traincope.engine.parallel.dispatch import run_remote_experts
from traincope.engine.parallel.ulysses import exchange

CHANNELS = 1
"""Channel dim of rows (N, H)."""


def send_shares(
    mixture: MixtureOfExperts, *, group: dist.ProcessGroup, mesh: DeviceMesh, sequence_parallel: bool
) -> None:
    """Make the rows of a mixture travel as shares. `group` belongs to `ep`, `mesh` to `tp`."""
    mixture.run_experts = functools.partial(run_cut_experts, group=group, mesh=mesh)
    mixture.leave = functools.partial(leave, mesh=mesh, sequence_parallel=sequence_parallel)


def run_cut_experts(
    experts: Experts, rows: Tensor, slots: Slots, *, group: dist.ProcessGroup, mesh: DeviceMesh
) -> Tensor:
    """Rows (N, H) through the experts of all ranks -> this rank's share of their channels, (N, H / tp)."""
    share = rows.chunk(mesh.size(), dim=CHANNELS)[mesh.get_local_rank()].contiguous()

    def run_gathered(arrived: Tensor, counts: Tensor) -> Tensor:
        whole = DTensor.from_local(arrived, mesh, [Shard(CHANNELS)], run_check=False).redistribute(
            placements=[Replicate()]
        )
        parts = experts(whole.to_local(grad_placements=[Partial()]), counts)
        summed = DTensor.from_local(parts, mesh, [Partial()], run_check=False)
        return summed.redistribute(placements=[Shard(CHANNELS)]).to_local()

    return run_remote_experts(run_gathered, share, slots, group=group)


def leave(mixed: Tensor, *, mesh: DeviceMesh, sequence_parallel: bool) -> Tensor:
    """Shares of all tokens (B, S, H / tp) -> whole tokens: this rank's (B, S / tp, H), or all of them."""
    if not sequence_parallel:
        whole = DTensor.from_local(mixed, mesh, [Shard(2)], run_check=False)
        return whole.redistribute(placements=[Replicate()]).to_local()
    by_rank = mixed.unflatten(1, (mesh.size(), -1)).movedim(1, 0).contiguous()
    shares: Tensor = exchange(by_rank, mesh.get_group().group_name)
    return shares.movedim(0, 2).flatten(2)
