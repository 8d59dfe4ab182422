"""Stragglers are named only if the others lose time by waiting for them."""

from dataclasses import replace

import pytest

from tests.analysis.lockstep import ENOUGH, lockstep
from tests.analysis.pipeline.orders import gpipe, one_forward_one_backward
from tests.analysis.pipeline.pipelines import Pipeline
from tests.timeline.build import group, rank, step, timeline
from traincope.analysis import Pattern, RankWait, Stragglers, TermExcess, analyze
from traincope.analysis.stragglers.patterns import Shape
from traincope.analysis.stragglers.persistence import MAX_CHANCE
from traincope.analysis.stragglers.stragglers import _is_certain, late_so_far, why_none
from traincope.events import Phase
from traincope.store import RankRecords


def stragglers_of(ranks: list[RankRecords]) -> Stragglers:
    return analyze(timeline(*ranks)).stragglers


def test_equal_ranks_have_no_straggler() -> None:
    result = stragglers_of(lockstep([[60, 60, 60]] * ENOUGH, transfer_ns=10))
    assert result.named == ()
    assert [(rank.own_wait_ns, rank.straggler_wait_ns) for rank in result.ranks] == [(0, 0)] * 3


def test_a_rank_that_computes_longer_is_named_with_two_kinds_of_evidence() -> None:
    """Rank 1 takes 90 instead of 60; a step takes 100; 59 of the 60 steps count."""
    result = stragglers_of(lockstep([[60, 90, 60]] * ENOUGH, transfer_ns=10))
    assert result.ranks == (
        RankWait(rank=0, compute_ns=3_540, own_ns=3_540, own_wait_ns=1_770, straggler_wait_ns=0),
        RankWait(rank=1, compute_ns=5_310, own_ns=5_310, own_wait_ns=0, straggler_wait_ns=3_540),
        RankWait(rank=2, compute_ns=3_540, own_ns=3_540, own_wait_ns=1_770, straggler_wait_ns=0),
    )
    (named,) = result.named
    assert (named.rank, named.confidence, named.cause) == (1, "high", "forward")
    assert (named.caused_share, named.excess_ratio, named.late_ns) == pytest.approx((0.3, 0.5, 30))
    assert named.terms == (TermExcess(term="forward", own_ns=90, peers_ns=60),)
    assert named.pattern == Pattern(
        shape=Shape.STEADY,
        first_step=None,
        last_step=None,
        period_steps=None,
        growth_ns_per_100_steps=None,
        late_steps=59,
    )


def test_one_step_too_few_names_nobody() -> None:
    result = stragglers_of(lockstep([[60, 90, 60]] * (ENOUGH - 1), transfer_ns=10))
    assert (result.named, result.steps, result.steps_needed) == ((), 58, 59)


@pytest.mark.parametrize(
    ("steps", "sentence", "late"),
    [
        (
            46,
            "too few steps to name a rank: 45 of 59; rank 1 so far, with 1 chance in 3,281 that it is noise",
            "rank 1 is late, so far (45 steps, 1 chance in 3,281 that it is noise)",
        ),
        (26, "too few steps to name a rank: 25 of 59", None),
    ],
)
def test_the_latest_rank_so_far_is_mentioned_with_its_chance(steps: int, sentence: str, late: str | None) -> None:
    """9 blocks of 5 steps, rank 1 the latest in all: 3 ranks x 2 tests x 1/3^9. With 5 blocks it is 6/243."""
    found = stragglers_of(lockstep([[60, 90, 60]] * steps, transfer_ns=10))
    assert (why_none(found), late_so_far(found)) == (sentence, late)
    assert why_none(stragglers_of(lockstep([[60, 60, 60]] * steps, transfer_ns=10))).endswith("of 59")


def test_a_rank_that_almost_all_waits_are_for_is_named_with_its_chance() -> None:
    """It is late for twelve steps, and then not for three: few blocks do not depend on each other."""
    turn = [[50, 90, 50, 50]] * 12 + [[90] * 4] * 3
    found = stragglers_of(lockstep([[90] * 4, *turn * 4], transfer_ns=1))
    (named,) = found.named
    assert (named.rank, named.confidence) == (1, "medium")
    assert named.chance is not None
    assert named.chance <= MAX_CHANCE
    assert _is_certain(named, found.ranks)
    others = [
        replace(each, straggler_wait_ns=sum(rank.straggler_wait_ns for rank in found.ranks)) if each.rank == 2 else each
        for each in found.ranks
    ]
    assert not _is_certain(named, others)
    assert not _is_certain(replace(named, chance=2 * MAX_CHANCE), found.ranks)


@pytest.mark.parametrize("why", [Phase.DATA_WAIT, Phase.GC, Phase.CHECKPOINT_STALL, Phase.COMPILE, Phase.NONE])
def test_the_cause_can_be_another_term_than_compute(why: Phase) -> None:
    (named,) = stragglers_of(lockstep([[60, 90, 60]] * ENOUGH, transfer_ns=10, of=why)).named
    assert (named.rank, named.confidence) == (1, "high")


def test_a_late_rank_whose_device_is_waited_for_has_one_kind_of_evidence() -> None:
    (named,) = stragglers_of(lockstep([[60, 90, 60]] * ENOUGH, transfer_ns=10, of=Phase.SYNC)).named
    assert (named.rank, named.confidence, named.cause) == (1, "medium", "sync")


def test_a_different_late_rank_in_each_step_is_noise() -> None:
    assert (
        stragglers_of(lockstep([[60, 60, 60], *[[90, 60, 60], [60, 90, 60], [60, 60, 90]] * 20], transfer_ns=10)).named
        == ()
    )


def test_a_slow_link_makes_no_straggler() -> None:
    assert stragglers_of(lockstep([[60, 60, 60]] * ENOUGH, transfer_ns=900)).named == ()


def test_an_insignificant_delay_makes_no_straggler() -> None:
    assert stragglers_of(lockstep([[60, 61, 60]] * ENOUGH, transfer_ns=100)).named == ()


def test_the_warm_up_step_makes_no_straggler() -> None:
    assert stragglers_of(lockstep([[60, 5_000, 60], *[[60, 60, 60]] * 60], transfer_ns=10)).named == ()


def test_a_single_rank_has_no_straggler() -> None:
    result = stragglers_of(lockstep([[60]] * ENOUGH, transfer_ns=10))
    assert (result.named, [rank.straggler_wait_ns for rank in result.ranks]) == ((), [0])


@pytest.mark.parametrize("order", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("stages", "backward"), [(2, 10), (2, 30), (2, 100), (4, 30)])
def test_a_healthy_pipeline_has_no_straggler(order: type, stages: int, backward: int) -> None:
    lengths = {(kind, s): ns for s in range(stages) for kind, ns in (("F", 10), ("B", backward))}
    assert stragglers_of(Pipeline(orders=order(stages, 4), durations=lengths).ranks()).named == ()


def test_an_uneven_pipeline_has_no_straggler() -> None:
    lengths = {("F", 0): 10, ("B", 0): 20, ("F", 1): 20, ("B", 1): 40}
    assert stragglers_of(Pipeline(orders=gpipe(2, 4), durations=lengths).ranks()).named == ()


def test_several_stragglers_are_named_against_the_others() -> None:
    """Work is 60, 90, 88, 60, 60 and a step takes 100: both slow ranks cost their excess over 60."""
    first, second = stragglers_of(lockstep([[60, 90, 88, 60, 60]] * ENOUGH, transfer_ns=10)).named
    assert (first.rank, first.gain_ratio, first.axes) == (1, pytest.approx(0.3), ("dp",))
    assert (second.rank, second.gain_ratio) == (2, pytest.approx(0.28))


def test_most_ranks_are_no_stragglers() -> None:
    """Three of four ranks take 90: the fourth is the exception, and it is fast."""
    assert stragglers_of(lockstep([[90, 90, 90, 60]] * ENOUGH, transfer_ns=10)).named == ()


def test_a_rank_outside_of_the_mesh_is_no_peer() -> None:
    """Rank 2 has another role: it has no coordinates on the mesh."""
    ranks = lockstep([[60, 60, 90]] * ENOUGH, transfer_ns=10)
    other = replace(ranks[2], info=replace(ranks[2].info, coord=replace(ranks[2].info.coord, coords={})))
    assert stragglers_of(ranks).named[0].rank == 2
    assert stragglers_of([*ranks[:2], other]).named == ()


def test_ranks_without_common_steps_are_not_compared() -> None:
    """As in kernel traces of other steps on each rank."""
    everyone = group("dp", 0, 1)
    ranks = [
        rank(number, *[step(at, 100 * at, 100 * at + 100) for at in steps], groups=[everyone], coords={"dp": number})
        for number, steps in enumerate((range(6), range(20, 26)))
    ]
    found = stragglers_of(ranks)
    assert (found.named, found.steps, found.steps_needed) == ((), 0, 0)
