"""Data of one attempt that is fed in the same order in every pass, again by each new iterator, once per worker, or the
same on several ranks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.efficiency.counted_flops import counted_flops
from traincope.arrays import Ints
from traincope.events import LENGTH_SHIFT, MAX_LENGTH, MAX_WORKERS, WORKERS_SHIFT, Kind, Phase, SamplerTrait
from traincope.store import RankBatches
from traincope.timeline import RankTimeline, Timeline
from traincope.topology import REPLICA_AXES, SHARD_AXES

ENOUGH = 8
"""Number of different batches from which equal ones are no chance, and no test with one batch."""
OTHERWISE = 0.1
"""Share of batches that come from elsewhere, at most, where iterators are begun anew."""
DATA_AXES = frozenset({*REPLICA_AXES, *SHARD_AXES, "dp_shard", "world"})
"""Axes whose ranks train on different data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameOrder:
    """A shuffling sampler that gave several passes the same order."""

    ranks: tuple[int, ...]
    passes: int
    batches: int
    """Batches of one pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameBatches:
    """Ranks that train on the same batches although they average their gradients."""

    groups: tuple[tuple[int, ...], ...]
    """Ranks with the same batches, at least two each."""
    batches: int
    """Number of compared batches."""
    divides: bool
    """A sampler that divides the data gave them."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(rank for group in self.groups for rank in group))


@dataclass(frozen=True, slots=True, kw_only=True)
class OncePerWorker:
    """Ranks whose loader workers all give the whole stream, so that each batch is fed once per worker."""

    ranks: tuple[int, ...]
    workers: int
    batches: int
    """Number of different batches of one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunAnew:
    """Ranks that make an iterator of the loader again and again, and take only its first batches."""

    ranks: tuple[int, ...]
    iterators: int
    """Number of them on one rank."""
    batches: int
    """Number of different batches that are fed: the first ones of each iterator."""
    in_each_step: bool
    """One batch of each iterator, and one of them per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FedData:
    same_order: SameOrder | None
    same_batches: SameBatches | None
    once_per_worker: OncePerWorker | None
    begun_anew: BegunAnew | None


def fed_data(timeline: Timeline) -> FedData:
    """Compare the batches of the last attempt: passes of a rank, and ranks."""
    imported = timeline.run.info.imported or not timeline.ranks
    batches = {} if imported else timeline.run.batches(timeline.run.ranks[0].attempt)
    read = {rank: each for rank, each in batches.items() if each.complete and each.unread is None}
    return FedData(
        same_order=_same_order(read),
        same_batches=_same_batches(timeline, read),
        once_per_worker=_once_per_worker(read),
        begun_anew=_begun_anew(read),
    )


def _begun_anew(batches: Mapping[int, RankBatches]) -> BegunAnew | None:
    """Only ranks whose iterators all begin alike, and are left before their end."""
    begun = {rank: found for rank, each in batches.items() if (found := _first_batches(each)) is not None}
    if not begun:
        return None
    iterators, different, in_each_step = begun[min(begun)]
    return BegunAnew(ranks=tuple(sorted(begun)), iterators=iterators, batches=different, in_each_step=in_each_step)


def _first_batches(each: RankBatches) -> tuple[int, int, bool] | None:
    """Return the numbers of iterators and of batches that they all begin with, and whether it is one per step; None if
    a tenth of the batches comes otherwise, or if the iterators may have no more.
    """
    is_left = ~np.isin(each.iterator, each.iterator[each.ends_pass])
    order = np.argsort(each.iterator[is_left], kind="stable")
    fed, iterator, sampler = (values[is_left][order] for values in (each.fingerprints, each.iterator, each.sampler))
    numbers, first, counts = np.unique(iterator, return_index=True, return_counts=True)
    if len(numbers) < ENOUGH:
        return None
    place = np.arange(len(fed)) - np.repeat(first, counts)
    longest = fed[iterator == numbers[counts.argmax()]]
    length = int(sampler[0]) >> LENGTH_SHIFT & MAX_LENGTH
    has_more = len(longest) == 1 if sampler[0] & SamplerTrait.STREAM else length > len(longest)
    expected = len(numbers) * len(longest)
    usual = min(len(fed), expected) >= (1 - OTHERWISE) * max(len(each.iterator), expected)
    if not has_more or not usual or not np.array_equal(fed, longest[place]):
        return None
    in_each_step = len(longest) == 1 and len(np.unique(each.steps[is_left])) == len(numbers)
    return len(numbers), len(np.unique(longest)), in_each_step


def _once_per_worker(batches: Mapping[int, RankBatches]) -> OncePerWorker | None:
    """Only ranks with the same number of workers, whose first iterator of a stream shows it."""
    repeated = {rank: found for rank, each in batches.items() if (found := _repeated(each)) is not None}
    if not repeated or len({workers for workers, _ in repeated.values()}) != 1:
        return None
    workers, different = repeated[min(repeated)]
    return OncePerWorker(ranks=tuple(sorted(repeated)), workers=workers, batches=different)


def _repeated(batches: RankBatches) -> tuple[int, int] | None:
    """Return the numbers of workers and of different batches, if each batch comes that often in a row, or None."""
    of_stream = np.flatnonzero((batches.sampler & SamplerTrait.STREAM).astype(bool))
    if not len(of_stream):
        return None
    own = batches.iterator == batches.iterator[of_stream[0]]
    workers = int(batches.sampler[of_stream[0]]) >> WORKERS_SHIFT & MAX_WORKERS
    fed = batches.fingerprints[own]
    if workers < 2 or len(fed) < ENOUGH * workers:
        return None
    rows = fed[: len(fed) // workers * workers].reshape(-1, workers)
    first = rows[:, 0]
    once = (rows == first[:, None]).all() and len(np.unique(first)) == len(first)
    return (workers, len(first)) if once and _different(first) else None


def _same_order(batches: Mapping[int, RankBatches]) -> SameOrder | None:
    found = {rank: passes for rank, each in batches.items() if len(passes := [*_passes(each)]) > 1}
    ranks = tuple(
        sorted(rank for rank, passes in found.items() if all(np.array_equal(passes[0], other) for other in passes))
    )
    if not ranks or ranks != tuple(sorted(batches)):
        return None
    return SameOrder(
        ranks=ranks,
        passes=min(len(found[rank]) for rank in ranks),
        batches=len(found[ranks[0]][0]),
    )


def _passes(batches: RankBatches) -> Iterator[Ints]:
    """Complete passes of shuffling samplers, with enough different batches."""
    for number in dict.fromkeys(batches.iterator[batches.ends_pass].tolist()):
        own = batches.iterator == number
        fed = batches.fingerprints[own]
        if (batches.sampler[own] & SamplerTrait.SHUFFLES).all() and _different(fed):
            yield fed


def _different(fed: Ints) -> bool:
    return len(np.unique(fed)) >= ENOUGH


def _same_batches(timeline: Timeline, batches: Mapping[int, RankBatches]) -> SameBatches | None:
    """Compare ranks that are replicas, or shards of one: along other axes, ranks need the same batch.

    Samples that a model generates are often of one prompt on several ranks: nothing is compared if the training says
    that it generates, or if a sampler repeats its samples, and ranks that compute different amounts have different
    ones.
    """
    if len(batches) < 2 or len(batches) < len(timeline.ranks) or any(map(_generates, timeline.ranks)):
        return None
    if _any_sampler(batches, SamplerTrait.REPEATS):
        return None
    shared = min(len(each.fingerprints) for each in batches.values())
    alike: dict[tuple[object, ...], list[int]] = {}
    for rank in timeline.ranks:
        fed, place = batches[rank.rank].fingerprints[:shared], _place_along_other_axes(rank)
        if place is not None and _different(fed):
            alike.setdefault((place, fed.tobytes(), _computed(rank)), []).append(rank.rank)
    groups = tuple(sorted(tuple(ranks) for ranks in alike.values() if len(ranks) > 1))
    if not groups:
        return None
    return SameBatches(groups=groups, batches=shared, divides=_any_sampler(batches, SamplerTrait.DIVIDES))


def _any_sampler(batches: Mapping[int, RankBatches], trait: SamplerTrait) -> bool:
    return any(bool((each.sampler & trait).any()) for each in batches.values())


def _place_along_other_axes(rank: RankTimeline) -> tuple[tuple[str, int], ...] | None:
    """Return a rank's coordinates on axes whose ranks need the same batch; None if they are not all known, or if no
    group of it trains on different data.
    """
    axes = {group.axis for group in rank.groups if len(group.ranks) > 1}
    others = axes - DATA_AXES
    if not axes & (DATA_AXES - {"world"}) or not others <= rank.coords.keys():
        return None
    return tuple(sorted((axis, at) for axis, at in rank.coords.items() if axis not in DATA_AXES))


def _computed(rank: RankTimeline) -> frozenset[tuple[str, float]]:
    """Return the FLOPs of a rank's counted steps by dtype; empty if none were counted."""
    counted = counted_flops(rank)
    return frozenset() if counted is None else frozenset(counted.executed().items())


def _generates(rank: RankTimeline) -> bool:
    return bool((rank.of_kind(Kind.PHASE)["phase"] == Phase.GENERATE).any())
