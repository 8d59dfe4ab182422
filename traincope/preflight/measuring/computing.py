"""Matrix products and memory copies of this rank, while all ranks do the same."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from traincope.preflight.measurements import Quantity, Rate, Round
from traincope.preflight.measuring.timing import repetition_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    side: int
    """Side of the factors of a product."""
    num_bytes: int
    """Bytes that are copied: more than the caches hold."""
    repetitions: int


ON_GPU = _Size(side=8192, num_bytes=1 << 30, repetitions=30)
ON_CPU = _Size(side=256, num_bytes=32 << 20, repetitions=15)
"""A product of a millisecond is often finished before another process takes the core."""


def measure_rates(*, rank: int, dtype: torch.dtype, device: torch.device, repeats: int) -> tuple[Rate, ...]:
    """Both quantities in both rounds. `dtype`: of the factors."""
    size = ON_CPU if device.type == "cpu" else ON_GPU
    works = {
        Quantity.PRODUCTS: _product(size, dtype, device),
        Quantity.MEMORY: _copy(size, device),
    }
    seconds: dict[Quantity, dict[Round, list[float]]] = {quantity: {round: [] for round in Round} for quantity in works}
    for work in works.values():
        work()
    for round in Round:
        for _ in range(repeats):
            for quantity, work in works.items():
                dist.barrier()
                each = repetition_seconds(work, device=device, repetitions=size.repetitions)
                seconds[quantity][round].append(each)
    amounts = {Quantity.PRODUCTS: 2.0 * size.side**3, Quantity.MEMORY: 2.0 * size.num_bytes}
    return tuple(
        Rate(
            rank=rank,
            quantity=quantity,
            amount=amounts[quantity],
            seconds={round: tuple(values) for round, values in seconds[quantity].items()},
            dtype=str(dtype).removeprefix("torch.") if quantity is Quantity.PRODUCTS else None,
        )
        for quantity in works
    )


def _product(size: _Size, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    factors = [torch.full((size.side, size.side), 0.5, dtype=dtype, device=device) for _ in range(3)]
    return lambda: torch.mm(factors[0], factors[1], out=factors[2])


def _copy(size: _Size, device: torch.device) -> Callable[[], object]:
    source = torch.zeros(size.num_bytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)
