"""The form in which DDP's gradients travel: fewer bytes a number, or fewer numbers.

bf16 and fp16 halve the bytes of an all-reduce, whose sum then is rounded as often as there are ranks. PowerSGD (Vogels
et al. 2019, arXiv:1905.13727) sends of each (n, m) matrix two factors of width r, (n + m) r numbers, where that is at
most half of it; what they miss is added to the next step's gradient, and the first steps go out whole.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, but not in torch's __all__
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from traincope.engine.config import DDPConfig


def compress_gradients(replicas: DistributedDataParallel, settings: DDPConfig, *, group: dist.ProcessGroup) -> None:
    """Have the replicas' gradients travel as `settings` says; in fp32 that is DDP's own way."""
    on_gpus = dist.get_backend(group) == "nccl"
    match settings.compression:
        case "bf16":
            # torch's own asks for NCCL, though nothing in it needs that.
            replicas.register_comm_hook(group, default_hooks.bf16_compress_hook if on_gpus else bf16_hook)
        case "fp16":
            replicas.register_comm_hook(group, default_hooks.fp16_compress_hook)
        case "powersgd":
            factors = powerSGD_hook.PowerSGDState(
                group,
                matrix_approximation_rank=settings.powersgd_rank,
                start_powerSGD_iter=settings.powersgd_start,
            )
            if on_gpus:
                replicas.register_comm_hook(factors, powerSGD_hook.powerSGD_hook)
            else:
                replicas.register_comm_hook(InTurn(factors=factors), powersgd_hook)


def bf16_hook(state: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """The mean over the group `state`, in bf16; DDP asks for these names."""
    compressed = bucket.buffer().to(torch.bfloat16).div_(state.size())

    def decompress(reduced: torch.futures.Future[list[Tensor]]) -> Tensor:
        buffer: Tensor = bucket.buffer()
        return buffer.copy_(reduced.value()[0])

    work = dist.all_reduce(compressed, group=state, async_op=True)
    assert work is not None
    future: torch.futures.Future[Tensor] = work.get_future().then(decompress)
    return future


@dataclass(slots=True, kw_only=True)
class InTurn:
    """PowerSGD's memory, and the bucket that it is at."""

    factors: powerSGD_hook.PowerSGDState
    under_way: torch.futures.Future[Tensor] | None = None


def powersgd_hook(state: InTurn, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """torch's, which begins with a bucket when the one before it is done.

    Its second and third all-reduce are issued by callbacks of the one before, which on gloo run on whichever thread
    ends it: ranks with several buckets under way would issue them in different orders, which no group survives.
    """
    if state.under_way is not None:
        state.under_way.wait()
    state.under_way = powerSGD_hook.powerSGD_hook(state.factors, bucket)
    return state.under_way
