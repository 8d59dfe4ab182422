"""Passes in the same order, batches that come once per worker, and ranks with the same batches."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.timeline.build import Row, group, phase, rank, step, timeline
from traincope.analysis import Finding, analyze
from traincope.events import BATCH_READ, BATCHES_END, LENGTH_SHIFT, WORKERS_SHIFT, Kind, Phase, SamplerTrait
from traincope.topology import Group

KNOWN, SHUFFLES = SamplerTrait.KNOWN, SamplerTrait.KNOWN | SamplerTrait.SHUFFLES
DIVIDED = SHUFFLES | SamplerTrait.DIVIDES
STREAM = SamplerTrait.STREAM | 2 << WORKERS_SHIFT
FIRST, SECOND = range(1, 11), range(21, 31)


def rows(passes: Sequence[Sequence[int]], sampling: int, *, left: bool = False) -> list[Row]:
    """Record one step of 100 ns per batch, and the end of each pass, unless the iterators are left before it."""
    found: list[Row] = []
    number = sequence = 0
    for iterator, batches in enumerate(passes, start=1):
        for value in (*batches, *(() if left else (None,))):
            begin = 100 * number
            found.append(
                Row(
                    kind=Kind.BATCH,
                    start_ns=begin + 5,
                    end_ns=begin + 5,
                    name=BATCHES_END if value is None else BATCH_READ,
                    step=number,
                    group=iterator,
                    sequence=sequence,
                    tag=sampling,
                    value=value or 0,
                )
            )
            sequence += 1
            if value is not None:
                found.append(step(number, begin, begin + 100))
                found.append(phase(Phase.FORWARD, begin + 10, begin + 100, at=number))
                number += 1
    return sorted(found, key=lambda row: (row.start_ns, row.kind != Kind.STEP))


def found(
    *of_ranks: Sequence[Sequence[int]],
    sampling: int = DIVIDED,
    groups: Sequence[Group] = (group("dp", 0, 1),),
    left: bool = False,
    coords: Sequence[dict[str, int]] = ({}, {}, {}, {}),
) -> list[Finding]:
    ranks = [
        rank(number, *rows(passes, sampling, left=left), groups=groups, coords=coords[number])
        for number, passes in enumerate(of_ranks)
    ]
    return [each for each in analyze(timeline(*ranks)).verdict if each.kind == "data_order"]


def test_equal_passes_of_a_shuffling_sampler_are_found() -> None:
    (finding,) = found((FIRST, FIRST), (SECOND, SECOND))
    assert finding.evidence == (
        "2 passes had their 10 batches in the same order, although the sampler shuffles: set_epoch was not called"
    )
    assert "set_epoch(epoch)" in finding.advice


def twice(batches: Sequence[int]) -> list[int]:
    return [batch for batch in batches for _ in range(2)]


def test_a_stream_that_each_worker_reads_is_found() -> None:
    """The workers give in turn. The last batch of the second one was not fetched any more."""
    (finding,) = found((twice(FIRST)[:-1],), (twice(SECOND),), sampling=STREAM)
    assert finding.evidence == (
        "each batch is fed 2 times in a row (9 different batches were compared), once by each of the 2 workers of the "
        "DataLoader: the dataset is iterable, and every worker yields all of it"
    )
    assert "get_worker_info()" in finding.advice


@pytest.mark.parametrize(
    ("batches", "sampling"),
    [
        (twice(FIRST), KNOWN | 2 << WORKERS_SHIFT),
        (twice(FIRST), SamplerTrait.STREAM),
        (twice(FIRST), SamplerTrait.STREAM | 3 << WORKERS_SHIFT),
        ([*FIRST, *FIRST], STREAM),
        (twice([1, 2] * 5), STREAM),
        (twice(range(1, 7)), STREAM),
        ([*twice(FIRST), *range(51, 61)], STREAM),
    ],
)
def test_batches_that_a_sampler_or_a_stream_repeats_are_no_finding(batches: Sequence[int], sampling: int) -> None:
    """With a sampler, no workers or three of them, in two passes, of two batches, few, or only at the begin."""
    assert not found((batches,), ([each + 100 for each in batches],), sampling=sampling)


def length(batches: int) -> int:
    return KNOWN | batches << LENGTH_SHIFT


@pytest.mark.parametrize("sampling", [length(3), length(15) | 2 << WORKERS_SHIFT, STREAM])
def test_an_iterator_that_is_made_anew_in_each_step_is_found(sampling: int) -> None:
    """10 of them, and each gives the first batch of its loader, or of a stream."""
    (finding,) = found([[7]] * 10, [[8]] * 10, sampling=sampling, left=True)
    assert finding.evidence == (
        "the iterator of the DataLoader is made anew in each step, 10 times, and each gives only its first batch: no "
        "other data are fed"
    )
    assert "next(iterator)" in finding.advice
    assert finding.ranks == ()


def test_iterators_that_are_left_after_their_first_batches_are_found() -> None:
    """Three of four batches each. The last one is cut."""
    first, second = ([1, 2, 3], [4, 5, 6])
    (finding,) = found([*[first] * 9, first[:2]], [*[second] * 9, second[:2]], sampling=length(4), left=True)
    assert "made anew again and again, 10 times, and each gives only its first 3 batches" in finding.evidence


@pytest.mark.parametrize(
    ("passes", "sampling", "left"),
    [
        ([[7]] * 10, length(2), False),
        ([[7]] * 10, length(1), True),
        ([[7]] * 10, KNOWN, True),
        ([[7, 8]] * 10, length(2), True),
        ([[7, 8]] * 10, STREAM, True),
        ([[7]] * 7, length(2), True),
        ([[each] for each in range(1, 11)], length(15), True),
        ([*[[7]] * 8, [7, *FIRST]], length(15), True),
        ([*[[7]] * 8, [9]], length(15), True),
    ],
)
def test_iterators_that_may_be_meant_to_be_new_are_no_finding(
    passes: Sequence[Sequence[int]], sampling: int, left: bool
) -> None:
    """Used up, of one batch, of an unknown number of batches, left after their last batch, few, shuffled, or only used
    for a look while another one is trained with.
    """
    assert not found(passes, [[each + 100 for each in batches] for batches in passes], sampling=sampling, left=left)


def test_ranks_with_the_same_batches_are_found() -> None:
    (finding,) = found((FIRST, SECOND), (FIRST, SECOND), sampling=SHUFFLES)
    assert "all 2 ranks are fed the same batches (20 were compared)" in finding.evidence
    assert "DistributedSampler" in finding.advice


MESH = [{"one": number // 2, "other": number % 2} for number in range(4)]


def on(one: str, other: str) -> dict[str, Any]:
    """Coordinates and groups of four ranks on two axes."""
    groups = [group(one, 0, 2), group(one, 1, 3, key="1"), group(other, 0, 1, key="2"), group(other, 2, 3, key="3")]
    return {"groups": groups, "coords": [{one: at["one"], other: at["other"]} for at in MESH]}


def test_data_that_are_divided_by_one_of_two_axes_are_found() -> None:
    fed = (FIRST, SECOND), (SECOND, FIRST), (FIRST, SECOND), (SECOND, FIRST)
    (finding,) = found(*fed, **on("dp_replicate", "dp_shard"))
    assert finding.ranks == ()
    assert finding.evidence.startswith(
        "ranks 0, 2 are fed the same batches (20 were compared), and so are ranks 1, 3, so averaging"
    )
    assert "dp_replicate x dp_shard" in finding.advice


def test_only_replicas_are_compared_where_the_mesh_has_other_axes() -> None:
    """Ranks 0 and 1 share their layers' products. Replicas are 0 and 2, 1 and 3."""
    meant = (FIRST, SECOND), (FIRST, SECOND), (SECOND, FIRST), (SECOND, FIRST)
    assert not found(*meant, **on("dp", "tp"))
    (finding,) = found(*[(FIRST, SECOND)] * 4, **on("dp", "tp"))
    assert finding.evidence.startswith("ranks 0, 2 are fed the same batches (20 were compared), and so are ranks 1, 3")


@pytest.mark.parametrize(
    ("first", "second", "sampling", "groups"),
    [
        ((FIRST, FIRST[::-1]), (SECOND, SECOND[::-1]), DIVIDED, [group("dp", 0, 1)]),
        ((FIRST, FIRST), (SECOND, SECOND), KNOWN, [group("dp", 0, 1)]),
        ((FIRST, FIRST), (SECOND, SECOND), 0, [group("dp", 0, 1)]),
        (([7] * 10, [7] * 10), ([7] * 10, [7] * 10), SHUFFLES, [group("dp", 0, 1)]),
        ((FIRST, SECOND), (FIRST, SECOND), KNOWN | SamplerTrait.REPEATS, [group("dp", 0, 1)]),
        ((FIRST, SECOND), (FIRST, SECOND), SHUFFLES, [group("tp", 0, 1)]),
        ((FIRST, SECOND), (FIRST, SECOND), SHUFFLES, [group("dp", 0, 1), group("cp", 0, 1, key="cp")]),
    ],
)
def test_what_may_be_meant_is_no_finding(
    first: Sequence[Sequence[int]], second: Sequence[Sequence[int]], sampling: int, groups: Sequence[Group]
) -> None:
    """Shuffled passes, a sampler without or with unknown order, one batch, one that repeats samples on purpose, and
    axes whose ranks need the same batch.
    """
    assert not found(first, second, sampling=sampling, groups=groups)


@pytest.mark.parametrize(("completions", "kinds"), [((96, 96), ["data_order"]), ((96, 128), [])])
def test_prompts_that_ranks_share_are_no_finding(completions: tuple[int, int], kinds: list[str]) -> None:
    """As GRPO shares them: each rank trains on completions of its own, which differ in their length."""
    ranks = []
    for number, tokens in enumerate(completions):
        flops = Row(
            kind=Kind.FLOPS, start_ns=1, end_ns=1, name="float32", phase=Phase.FORWARD, step=0, tag=1, value=tokens
        )
        fed = sorted([*rows((FIRST, SECOND), KNOWN), flops], key=lambda row: (row.start_ns, row.kind != Kind.STEP))
        ranks.append(rank(number, *fed, groups=[group("dp", 0, 1)]))
    assert [each.kind for each in analyze(timeline(*ranks)).verdict if each.kind == "data_order"] == kinds
