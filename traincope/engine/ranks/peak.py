"""Measured matrix-product rate of a rank while all ranks multiply: a CPU's substitute for a data sheet."""

import time

import torch
import torch.distributed as dist

SIDE = 512
"""Side of the matrices: large enough for full speed, small enough for a millisecond."""
ROUNDS = 3
ROUND_SECONDS = 0.1


def matmul_peak(dtype: torch.dtype, *, device: torch.device) -> float:
    """FLOP/s of one rank: mean over all ranks, best of a few rounds, the same on each rank.

    All ranks must call it together, so that they share cores as in training. Draws no random number.
    """
    a = torch.full((SIDE, SIDE), 0.5, dtype=dtype, device=device)
    b = torch.full((SIDE, SIDE), 0.25, dtype=dtype, device=device)
    out = torch.mm(a, b)
    rates = []
    for _ in range(ROUNDS):
        _barrier()
        rates.append(_mean(_rate(a, b, out)))
    return max(rates)


def _rate(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> float:
    """FLOP/s over `ROUND_SECONDS`."""
    products, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < ROUND_SECONDS:
        torch.mm(a, b, out=out)
        products += 1
    return products * 2 * SIDE**3 / elapsed


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def _mean(rate: float) -> float:
    """Mean over ranks."""
    if not dist.is_initialized():
        return rate
    total = torch.tensor(rate, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()
