"""Messages between the ranks of pairings: round trips of several sizes."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from traincope.preflight.measurements import PairTime, Round
from traincope.preflight.measuring.timing import repetition_seconds
from traincope.preflight.pairing import Pair, Pairing

BYTES_ON_CPU, BYTES_ON_GPU = (8, 32 << 10, 1 << 20), (8, 1 << 20, 64 << 20)
REPETITIONS = 15


def measure_pairings(
    pairings: Sequence[Pairing], *, round: Round, rank: int, device: torch.device, repeats: int
) -> tuple[PairTime, ...]:
    """Times of the pairs whose lower rank is this one. Every pairing is repeated after all others."""
    sizes = BYTES_ON_CPU if device.type == "cpu" else BYTES_ON_GPU
    seconds: dict[tuple[Pair, int], list[float]] = defaultdict(list)
    # The first message between two ranks opens their connection.
    _run(pairings, sizes[:1], rank=rank, device=device, repetitions=1)
    for _ in range(repeats):
        for key, each in _run(pairings, sizes, rank=rank, device=device, repetitions=REPETITIONS).items():
            seconds[key].append(each)
    return tuple(
        PairTime(ranks=ranks, round=round, num_bytes=num_bytes, seconds=tuple(values))
        for (ranks, num_bytes), values in seconds.items()
    )


def _run(
    pairings: Sequence[Pairing], sizes: Sequence[int], *, rank: int, device: torch.device, repetitions: int
) -> dict[tuple[Pair, int], float]:
    result = {}
    for pairing in pairings:
        dist.barrier()
        for ranks in pairing:
            if rank not in ranks:
                continue
            for num_bytes in sizes:
                trip = _round_trip(ranks, num_bytes, rank=rank, device=device)
                trip()
                each = repetition_seconds(trip, device=device, repetitions=repetitions) / 2
                if rank == ranks[0]:
                    result[ranks, num_bytes] = each
    return result


def _round_trip(ranks: Pair, num_bytes: int, *, rank: int, device: torch.device) -> Callable[[], None]:
    message = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    lower, higher = ranks

    def trip() -> None:
        if rank == lower:
            dist.send(message, higher)
            dist.recv(message, higher)
        else:
            dist.recv(message, lower)
            dist.send(message, lower)

    return trip
