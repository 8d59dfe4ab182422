"""Bus factors as nccl-tests print them."""

import pytest

from traincope.plan.layout.bus import bus_factor


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("send", 2, 1.0),
    ],
)
def test_bus_factors_of_a_ring(operation: str, ranks: int, factor: float) -> None:
    assert bus_factor(operation, ranks) == factor
