"""Measured matrix-product rate of a rank while all ranks multiply: a CPU's substitute for a data sheet."""

import time
from statistics import median

import torch
import torch.distributed as dist

SIDE = 512
"""Side of the matrices: large enough for full speed, small enough for a millisecond."""
MAX_SIDE = 4096
GAIN = 1.03
"""Larger matrices are tried as long as they are this much faster."""
MAX_PRODUCT_SECONDS = 0.5
REPEATS = 7
ROUNDS = 3
ROUND_SECONDS = 0.1


def matmul_peak(dtype: torch.dtype, *, device: torch.device) -> float:
    """FLOP/s of one rank: mean over all ranks, best of a few rounds, the same on each rank.

    All ranks must call it together, so that they share cores as in training. Draws no random number.
    """
    operands = _operands(SIDE, dtype, device)
    rates = []
    for _ in range(ROUNDS):
        _barrier()
        rates.append(_mean(_rate(*operands)))
    return max(rates)


def saturated_peak(dtype: torch.dtype) -> tuple[float, int]:
    """FLOP/s of this process with torch's current number of threads, and the side of the matrices that reach it.

    The side is doubled until that no longer helps. Each rate is the median of `REPEATS` rounds.
    """
    best, best_side, side = 0.0, 0, SIDE // 4
    while side <= MAX_SIDE:
        operands = _operands(side, dtype, torch.device("cpu"))
        rate = median(_rate(*operands) for _ in range(REPEATS))
        if rate > best:
            best, best_side, gain = rate, side, rate / best if best else GAIN
        else:
            gain = 1.0
        if gain < GAIN or 2 * (2 * side) ** 3 / rate > MAX_PRODUCT_SECONDS:
            break
        side *= 2
    return best, best_side


def _operands(side: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two matrices and their product."""
    a = torch.full((side, side), 0.5, dtype=dtype, device=device)
    b = torch.full((side, side), 0.25, dtype=dtype, device=device)
    return a, b, torch.mm(a, b)


def _rate(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> float:
    """FLOP/s over `ROUND_SECONDS`."""
    products, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < ROUND_SECONDS:
        torch.mm(a, b, out=out)
        products += 1
    return products * 2 * a.shape[0] ** 3 / elapsed


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
