"""DDP (distributed data parallelism), and compression of its gradients.

Every rank of the `dp` axis (with context parallelism: of `dp` x `cp`) has the whole model. Gradients are averaged as
they appear.

Compression sends fewer bytes per number, or fewer numbers. bf16 and fp16 halve the bytes of an all-reduce; the sum is
then rounded once per rank. PowerSGD (Vogels et al. 2019, arXiv:1905.13727) sends two factors of width r for each
(n, m) matrix: (n + m) r numbers. It does so only where that is at most half of the matrix. The next step's gradient
receives what the factors miss. The first steps send whole gradients.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, but not in torch's __all__
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from traincope.engine.config import DDPConfig
from traincope.engine.ranks.mesh import Layout


class Replicas(DistributedDataParallel):
    """DDP that knows what its gradients' compression keeps from step to step."""

    factors: powerSGD_hook.PowerSGDState | None = None
    """PowerSGD's factors and the errors of this rank. None without PowerSGD."""


def apply_ddp(model: nn.Module, settings: DDPConfig, *, layout: Layout, device: torch.device) -> nn.Module:
    """Wrap an initialised model in DDP.

    The model is unchanged without a replica axis, and where FSDP has its parameters.
    """
    group = layout.group(layout.replica_axis)
    if group is None or layout.sharded:
        return model
    replicas = Replicas(
        model,
        device_ids=None if device.type == "cpu" else [device],
        process_group=group,
        bucket_cap_mb=settings.bucket_mib,
        gradient_as_bucket_view=True,
    )
    compress_gradients(replicas, settings, group=group)
    return replicas


def compress_gradients(replicas: Replicas, settings: DDPConfig, *, group: dist.ProcessGroup) -> None:
    """Send the replicas' gradients as `settings` says; without compression DDP sends fp32."""
    on_gpus = dist.get_backend(group) == "nccl"
    match settings.compression:
        case "bf16":
            # torch's own hook requires NCCL without need.
            replicas.register_comm_hook(group, default_hooks.bf16_compress_hook if on_gpus else bf16_hook)
        case "fp16":
            replicas.register_comm_hook(group, default_hooks.fp16_compress_hook)
        case "powersgd":
            factors = powerSGD_hook.PowerSGDState(
                group,
                matrix_approximation_rank=settings.powersgd_rank,
                start_powerSGD_iter=settings.powersgd_start,
            )
            replicas.factors = factors
            if on_gpus:
                replicas.register_comm_hook(factors, powerSGD_hook.powerSGD_hook)
            else:
                replicas.register_comm_hook(SerialPowerSGD(factors=factors), powersgd_hook)


def bf16_hook(state: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Mean over the group `state`, in bf16. DDP requires these argument names."""
    compressed = bucket.buffer().to(torch.bfloat16).div_(state.size())

    def decompress(reduced: torch.futures.Future[list[Tensor]]) -> Tensor:
        buffer: Tensor = bucket.buffer()
        return buffer.copy_(reduced.value()[0])

    work = dist.all_reduce(compressed, group=state, async_op=True)
    assert work is not None
    future: torch.futures.Future[Tensor] = work.get_future().then(decompress)
    return future


@dataclass(slots=True, kw_only=True)
class SerialPowerSGD:
    """PowerSGD's state and the bucket that it is sending."""

    factors: powerSGD_hook.PowerSGDState
    previous: torch.futures.Future[Tensor] | None = None


def powersgd_hook(state: SerialPowerSGD, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """torch's PowerSGD hook, one bucket after the other.

    It issues the second and third all-reduce from callbacks of the previous one. On gloo these run on the thread that
    ends it. Ranks with several buckets in flight would issue them in different orders, and the group would fail.
    """
    if state.previous is not None:
        state.previous.wait()
    state.previous = powerSGD_hook.powerSGD_hook(state.factors, bucket)
    return state.previous
