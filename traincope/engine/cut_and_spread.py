"""Experts that are both cut over `tp` and spread over `ep`: every rank of both has some channels of some experts.

The ranks of `tp` have the same tokens, all of them, for they route whole sequences alike (so that a capacity and the
balance loss are of these). Each sends its share of every row's channels, so no number goes to an expert's rank twice,
whether or not sequence parallelism has cut the stream. There the ranks of `tp` put the rows together, and afterwards
sum their parts of what the experts make, share by share, which travels back as it came. Megatron-Core's dispatcher
sends as much, but some of the tokens whole: their numbers differ from rank to rank, and none knows whole sequences.
"""

import functools

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from traincope.engine.dispatch import through_ranks
from traincope.engine.moe import Experts, MixtureOfExperts
from traincope.engine.slots import Slots
from traincope.engine.ulysses import exchange

CHANNELS = 1
"""Dim of rows (N, H)."""


def send_shares(
    mixture: MixtureOfExperts, *, group: dist.ProcessGroup, mesh: DeviceMesh, sequence_parallel: bool
) -> None:
    """Have the rows of a mixture travel as shares; `group` is that of `ep`, `mesh` that of `tp`."""
    mixture.through = functools.partial(through_both, group=group, mesh=mesh)
    mixture.leave = functools.partial(leave, mesh=mesh, sequence_parallel=sequence_parallel)


def through_both(experts: Experts, rows: Tensor, slots: Slots, *, group: dist.ProcessGroup, mesh: DeviceMesh) -> Tensor:
    """Rows (N, H) through the experts of every rank -> this rank's share of their channels, (N, H / tp)."""
    share = rows.chunk(mesh.size(), dim=CHANNELS)[mesh.get_local_rank()].contiguous()

    def put_together(arrived: Tensor, counts: Tensor) -> Tensor:
        whole = DTensor.from_local(arrived, mesh, [Shard(CHANNELS)], run_check=False).redistribute(
            placements=[Replicate()]
        )
        parts = experts(whole.to_local(grad_placements=[Partial()]), counts)
        summed = DTensor.from_local(parts, mesh, [Partial()], run_check=False)
        return summed.redistribute(placements=[Shard(CHANNELS)]).to_local()

    return through_ranks(put_together, share, slots, group=group)


def leave(mixed: Tensor, *, mesh: DeviceMesh, sequence_parallel: bool) -> Tensor:
    """Shares of all tokens (B, S, H / tp) -> whole tokens, of these tokens (B, S / tp, H) or of all."""
    if not sequence_parallel:
        whole = DTensor.from_local(mixed, mesh, [Shard(2)], run_check=False)
        return whole.redistribute(placements=[Replicate()]).to_local()
    by_rank = mixed.unflatten(1, (mesh.size(), -1)).movedim(1, 0).contiguous()
    shares: Tensor = exchange(by_rank, mesh.get_group().group_name)
    return shares.movedim(0, 2).flatten(2)
