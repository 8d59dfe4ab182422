"""Seeds of the tests that draw their own random inputs: fixed in `make test`, new in `make fuzz`."""

import os

VARIABLE = "TRAINCOPE_FUZZ_SEED"
"""Environment variable that `make fuzz` sets."""


def seeds(count: int) -> range:
    """`count` seeds: 0, 1, ... in `make test`; the ones after its seed in `make fuzz`."""
    first = int(os.environ.get(VARIABLE, "0")) * 1_000
    return range(first, first + count)
