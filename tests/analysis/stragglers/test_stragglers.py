"""Stragglers are named only if the others lose time by waiting for them."""

import pytest

from tests.analysis.lockstep import lockstep
from tests.analysis.pipeline.orders import gpipe, one_forward_one_backward
from tests.analysis.pipeline.pipelines import Pipeline
from tests.timeline.build import timeline
from traincope.analysis import RankWait, Stragglers, analyze
from traincope.events import Phase
from traincope.store import RankRecords


def stragglers_of(ranks: list[RankRecords]) -> Stragglers:
    return analyze(timeline(*ranks)).stragglers


def test_equal_ranks_have_no_straggler() -> None:
    result = stragglers_of(lockstep([[60, 60, 60]] * 3, transfer_ns=10))
    assert result.named == ()
    assert [(rank.own_wait_ns, rank.straggler_wait_ns) for rank in result.ranks] == [(0, 0)] * 3


def test_a_rank_that_computes_longer_is_named_with_two_kinds_of_evidence() -> None:
    """Rank 1 takes 90 instead of 60; a step takes 100; two of the three steps count."""
    result = stragglers_of(lockstep([[60, 90, 60]] * 3, transfer_ns=10))
    assert result.ranks == (
        RankWait(rank=0, compute_ns=120, own_ns=120, own_wait_ns=60, straggler_wait_ns=0),
        RankWait(rank=1, compute_ns=180, own_ns=180, own_wait_ns=0, straggler_wait_ns=120),
        RankWait(rank=2, compute_ns=120, own_ns=120, own_wait_ns=60, straggler_wait_ns=0),
    )
    (named,) = result.named
    assert (named.rank, named.confidence) == (1, "high")
    assert (named.caused_share, named.excess_ratio) == pytest.approx((0.3, 0.5))


@pytest.mark.parametrize("why", [Phase.DATA_WAIT, Phase.GC, Phase.CHECKPOINT_STALL, Phase.COMPILE, Phase.NONE])
def test_the_cause_can_be_another_term_than_compute(why: Phase) -> None:
    (named,) = stragglers_of(lockstep([[60, 90, 60]] * 3, transfer_ns=10, of=why)).named
    assert (named.rank, named.confidence) == (1, "high")


def test_a_late_rank_without_longer_work_has_one_kind_of_evidence() -> None:
    (named,) = stragglers_of(lockstep([[60, 90, 60]] * 3, transfer_ns=10, of=Phase.SYNC)).named
    assert (named.rank, named.confidence) == (1, "medium")


def test_a_different_late_rank_in_each_step_is_noise() -> None:
    assert stragglers_of(lockstep([[60, 60, 60], [90, 60, 60], [60, 90, 60], [60, 60, 90]], transfer_ns=10)).named == ()


def test_a_slow_link_makes_no_straggler() -> None:
    assert stragglers_of(lockstep([[60, 60, 60]] * 3, transfer_ns=900)).named == ()


def test_an_insignificant_delay_makes_no_straggler() -> None:
    assert stragglers_of(lockstep([[60, 61, 60]] * 3, transfer_ns=100)).named == ()


def test_the_warm_up_step_makes_no_straggler() -> None:
    assert stragglers_of(lockstep([[60, 500, 60], [60, 60, 60], [60, 60, 60]], transfer_ns=10)).named == ()


def test_a_single_rank_has_no_straggler() -> None:
    result = stragglers_of(lockstep([[60]] * 3, transfer_ns=10))
    assert (result.named, [rank.straggler_wait_ns for rank in result.ranks]) == ((), [0])


@pytest.mark.parametrize("order", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("stages", "backward"), [(2, 10), (2, 30), (2, 100), (4, 30)])
def test_a_healthy_pipeline_has_no_straggler(order: type, stages: int, backward: int) -> None:
    lengths = {(kind, s): ns for s in range(stages) for kind, ns in (("F", 10), ("B", backward))}
    assert stragglers_of(Pipeline(orders=order(stages, 4), durations=lengths).ranks()).named == ()


def test_an_uneven_pipeline_has_no_straggler() -> None:
    lengths = {("F", 0): 10, ("B", 0): 20, ("F", 1): 20, ("B", 1): 40}
    assert stragglers_of(Pipeline(orders=gpipe(2, 4), durations=lengths).ranks()).named == ()


def test_the_slower_of_two_slow_ranks_is_not_named() -> None:
    """Work is 60, 90, 88, 60: replacing rank 1 saves 2 of 100, which is not significant."""
    assert stragglers_of(lockstep([[60, 90, 88, 60]] * 3, transfer_ns=10)).named == ()


def test_a_stragglers_gain_is_limited_by_the_next_slowest_rank() -> None:
    """Work is 60, 90, 70, 60 and a step takes 100: with rank 1 as fast as rank 2 a step takes 80."""
    (named,) = stragglers_of(lockstep([[60, 90, 70, 60]] * 3, transfer_ns=10, of=Phase.DATA_WAIT)).named
    assert named.gain_ratio == pytest.approx(0.2)
    assert (named.cause, named.axes) == ("data_wait", ("dp",))
