"""Random inputs of tests: few with fixed seeds in `make test`, many with new seeds in `make fuzz`."""

import os

VARIABLE = "TRAINCOPE_FUZZ_SEED"
"""Environment variable that `make fuzz` sets."""


def seeds(count: int) -> range:
    """`count` seeds: 0, 1, ... in `make test`; the ones after its seed in `make fuzz`."""
    first = int(os.environ.get(VARIABLE, "0")) * 1_000
    return range(first, first + count)


def examples(count: int) -> int:
    """`count` examples of a slow property in `make fuzz`, a fifth of them in `make test`."""
    return count if VARIABLE in os.environ else max(count // 5, 4)
