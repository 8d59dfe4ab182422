"""Bus factors: bytes that a rank of a ring sends per byte of a collective."""

RING_FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Operation -> bus factor x n / (n - 1) for n ranks. All other operations send their bytes once."""


def ring_passes(operation: str) -> int:
    """Passes of a ring of n ranks, of n - 1 steps each: 2 for an all-reduce, 1 for half of it."""
    return 2 if operation == "all_reduce" else 1


def bus_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth (nccl-tests PERFORMANCE.md).

    It is 2(n-1)/n for all-reduce, (n-1)/n for gathers and exchanges, 1 otherwise. Multiply it with the bytes as
    nccl-tests count them: the whole output of an all-gather, the whole input of a reduce-scatter, the send buffer of an
    all-to-all. The product is what one rank of a ring sends, the least that any algorithm without help from the network
    can send (Patarasuk and Yuan 2009, JPDC 69(2), section 3).
    """
    return RING_FACTORS[operation] * (ranks - 1) / ranks if operation in RING_FACTORS else 1.0
