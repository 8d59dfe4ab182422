"""A rank is named only where the others lost time by waiting for it; often nobody is."""

import pytest

from tests.analysis.lockstep import lockstep
from tests.analysis.orders import gpipe, one_forward_one_backward
from tests.analysis.pipelines import Pipeline
from tests.timeline.build import timeline
from traincope.analysis import RankWait, Stragglers, analyze
from traincope.events import Phase
from traincope.store import RankRecords


def found(ranks: list[RankRecords]) -> Stragglers:
    return analyze(timeline(*ranks)).stragglers


def test_ranks_that_are_alike_blame_nobody() -> None:
    result = found(lockstep([[60, 60, 60]] * 3, transfer_ns=10))
    assert result.named == ()
    assert [(rank.own_wait_ns, rank.caused_wait_ns) for rank in result.ranks] == [(0, 0)] * 3


def test_a_rank_that_computes_longer_is_named_with_two_kinds_of_evidence() -> None:
    """Rank 1 needs 90 instead of 60; a step is 100; two of the three steps are counted."""
    result = found(lockstep([[60, 90, 60]] * 3, transfer_ns=10))
    assert result.ranks == (
        RankWait(rank=0, compute_ns=120, own_ns=120, own_wait_ns=60, caused_wait_ns=0),
        RankWait(rank=1, compute_ns=180, own_ns=180, own_wait_ns=0, caused_wait_ns=120),
        RankWait(rank=2, compute_ns=120, own_ns=120, own_wait_ns=60, caused_wait_ns=0),
    )
    (named,) = result.named
    assert (named.rank, named.confidence) == (1, "high")
    assert (named.caused_share, named.excess_ratio) == pytest.approx((0.3, 0.5))


@pytest.mark.parametrize("why", [Phase.DATA_WAIT, Phase.GC, Phase.CHECKPOINT_STALL, Phase.COMPILE, Phase.NONE])
def test_what_makes_it_late_need_not_be_compute(why: Phase) -> None:
    (named,) = found(lockstep([[60, 90, 60]] * 3, transfer_ns=10, of=why)).named
    assert (named.rank, named.confidence) == (1, "high")


def test_late_without_longer_work_of_its_own_is_one_kind_of_evidence() -> None:
    (named,) = found(lockstep([[60, 90, 60]] * 3, transfer_ns=10, of=Phase.SYNC)).named
    assert (named.rank, named.confidence) == (1, "medium")


def test_another_rank_late_each_step_is_noise() -> None:
    assert found(lockstep([[60, 60, 60], [90, 60, 60], [60, 90, 60], [60, 60, 90]], transfer_ns=10)).named == ()


def test_a_slow_link_is_nobodys_fault() -> None:
    assert found(lockstep([[60, 60, 60]] * 3, transfer_ns=900)).named == ()


def test_a_delay_that_nobody_notices_is_not_worth_a_name() -> None:
    assert found(lockstep([[60, 61, 60]] * 3, transfer_ns=100)).named == ()


def test_the_warm_up_step_blames_nobody() -> None:
    assert found(lockstep([[60, 500, 60], [60, 60, 60], [60, 60, 60]], transfer_ns=10)).named == ()


def test_one_rank_alone_waits_for_nobody() -> None:
    result = found(lockstep([[60]] * 3, transfer_ns=10))
    assert (result.named, [rank.caused_wait_ns for rank in result.ranks]) == ((), [0])


@pytest.mark.parametrize("order", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("stages", "backward"), [(2, 10), (2, 30), (2, 100), (4, 30)])
def test_a_healthy_pipeline_makes_its_stages_wait_and_has_no_straggler(order: type, stages: int, backward: int) -> None:
    lengths = {(kind, s): ns for s in range(stages) for kind, ns in (("F", 10), ("B", backward))}
    assert found(Pipeline(orders=order(stages, 4), durations=lengths).ranks()).named == ()


def test_an_uneven_pipeline_is_a_matter_of_layers_and_not_of_a_rank() -> None:
    lengths = {("F", 0): 10, ("B", 0): 20, ("F", 1): 20, ("B", 1): 40}
    assert found(Pipeline(orders=gpipe(2, 4), durations=lengths).ranks()).named == ()


def test_two_slow_ranks_are_not_the_fault_of_the_slower_one() -> None:
    """Work 60, 90, 88, 60: replacing rank 1 would save 2 of 100, no more than is worth a name."""
    assert found(lockstep([[60, 90, 88, 60]] * 3, transfer_ns=10)).named == ()


def test_a_straggler_saves_what_the_next_slowest_leaves_and_its_cause_is_told() -> None:
    """Work 60, 90, 70, 60 and a step of 100: with rank 1 as quick as rank 2 a step takes 80."""
    (named,) = found(lockstep([[60, 90, 70, 60]] * 3, transfer_ns=10, of=Phase.DATA_WAIT)).named
    assert named.gain_ratio == pytest.approx(0.2)
    assert (named.cause, named.axes) == ("data_wait", ("dp",))
