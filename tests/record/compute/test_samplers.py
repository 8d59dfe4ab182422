"""What is recorded of a DataLoader: whether its sampler shuffles or divides the data, and its workers."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler

from traincope.events import LENGTH_SHIFT, WORKERS_SHIFT, SamplerTrait
from traincope.record.compute.data import _traits

DATA: Any = list(range(8))
KNOWN, SHUFFLES, DIVIDES, STREAM, REPEATS = SamplerTrait
FOUR, EIGHT, AT_LEAST_15 = (length << LENGTH_SHIFT for length in (4, 8, 15))


class WithMethod(Sampler[int]):
    """It can be told to shuffle, and was not."""

    def shuffle(self) -> None: ...

    def __iter__(self) -> Iterator[int]:
        return iter(DATA)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(DATA)


class Repeating(WithMethod):
    """As TRL gives each prompt several times."""

    mini_repeat_count = 4


class OneRanksBatches(BatchSampler):
    """As accelerate divides batches: the sampler is in the batch sampler below."""

    num_processes = 2

    def __init__(self, sampler: Sampler[int]) -> None:
        self.batch_sampler = BatchSampler(sampler, 2, False)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batch_sampler)


@pytest.mark.parametrize(
    ("loader", "traits"),
    [
        (DataLoader(DATA), KNOWN | EIGHT),
        (DataLoader(DATA, batch_size=2), KNOWN | FOUR),
        (DataLoader(DATA * 9), KNOWN | AT_LEAST_15),
        (DataLoader(DATA, shuffle=True), KNOWN | SHUFFLES | EIGHT),
        (DataLoader(DATA, sampler=WithMethod()), KNOWN),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)), KNOWN | SHUFFLES | DIVIDES | FOUR),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0, shuffle=False)), KNOWN | DIVIDES | FOUR),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, 1, 0)), KNOWN | SHUFFLES | EIGHT),
        (DataLoader(DATA, sampler=Repeating()), KNOWN | REPEATS),
        (DataLoader(DATA, batch_sampler=OneRanksBatches(Repeating())), KNOWN | DIVIDES | REPEATS),
        (DataLoader(DATA, batch_sampler=OneRanksBatches(RandomSampler(DATA))), KNOWN | SHUFFLES | DIVIDES),
        (DataLoader(Endless()), STREAM),
        (DataLoader(Endless(), batch_size=None), STREAM),
        (DataLoader(Endless(), num_workers=2), STREAM | 2 << WORKERS_SHIFT),
    ],
)
def test_the_traits_of_a_sampler(loader: DataLoader[Any], traits: int) -> None:
    assert _traits(iter(loader)) == traits
