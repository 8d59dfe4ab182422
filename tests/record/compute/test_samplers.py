"""What is recorded of a DataLoader's sampler: whether it shuffles, and whether it gives each rank its part."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler

from traincope.events import SamplerTrait
from traincope.record.compute.data import _sampler_traits

DATA: Any = list(range(8))
KNOWN, SHUFFLES, DIVIDES = SamplerTrait


class WithMethod(Sampler[int]):
    """It can be told to shuffle, and was not."""

    def shuffle(self) -> None: ...

    def __iter__(self) -> Iterator[int]:
        return iter(DATA)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(DATA)


@pytest.mark.parametrize(
    ("loader", "traits"),
    [
        (DataLoader(DATA), KNOWN),
        (DataLoader(DATA, shuffle=True), KNOWN | SHUFFLES),
        (DataLoader(DATA, sampler=WithMethod()), KNOWN),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)), KNOWN | SHUFFLES | DIVIDES),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0, shuffle=False)), KNOWN | DIVIDES),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, 1, 0)), KNOWN | SHUFFLES),
        (DataLoader(Endless()), KNOWN),
    ],
)
def test_the_traits_of_a_sampler(loader: DataLoader[Any], traits: SamplerTrait) -> None:
    assert _sampler_traits(iter(loader)) == traits
