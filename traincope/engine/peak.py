"""How fast a rank multiplies matrices while every other rank does: a CPU's stand-in for a data sheet."""

import time

import torch
import torch.distributed as dist

SIDE = 512
"""Of the matrices: large enough for full speed, small enough for a millisecond."""
ROUNDS = 3
ROUND_SECONDS = 0.1


def matmul_peak(dtype: torch.dtype, *, device: torch.device) -> float:
    """FLOP/s of one rank, the mean over all, the same on each; of a few rounds the best.

    All ranks must call it together: cores that several ranks share are then shared as in training.
    Draws no random number.
    """
    a = torch.full((SIDE, SIDE), 0.5, dtype=dtype, device=device)
    b = torch.full((SIDE, SIDE), 0.25, dtype=dtype, device=device)
    out = torch.mm(a, b)
    rates = []
    for _ in range(ROUNDS):
        _meet()
        rates.append(_mean(_rate(a, b, out)))
    return max(rates)


def _rate(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> float:
    """FLOP/s for `ROUND_SECONDS`."""
    products, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < ROUND_SECONDS:
        torch.mm(a, b, out=out)
        products += 1
    return products * 2 * SIDE**3 / elapsed


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()


def _mean(rate: float) -> float:
    """Over ranks."""
    if not dist.is_initialized():
        return rate
    total = torch.tensor(rate, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()
