"""What a ring puts on the wire: the algorithm's factor between a collective's bytes and a rank's."""

RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Operation -> bus factor x n / (n - 1), n ranks; all others move what they are given."""


def bus_factor(operation: str, ranks: int) -> float:
    """Bus over algorithm bandwidth (nccl-tests PERFORMANCE.md): all-reduce 2(n-1)/n, gathers (n-1)/n, else 1.

    Times the bytes as nccl-tests count them (of an all-gather the whole output, of a reduce-scatter the
    whole input, of an all-to-all the send buffer) it is what one rank of a ring sends, the least that
    any algorithm without help from the network can (Patarasuk and Yuan 2009, JPDC 69(2), section 3).
    """
    return RING[operation] * (ranks - 1) / ranks if operation in RING else 1.0
