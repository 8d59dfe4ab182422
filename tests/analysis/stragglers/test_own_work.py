"""Own work of every rank in every step, relative to its peers."""

import numpy as np
import pytest

from tests.analysis.lockstep import lockstep
from tests.timeline.build import action, phase, rank, step, timeline
from traincope.analysis import OwnWork, analyze, own_work
from traincope.analysis.stragglers.own_work import peers
from traincope.events import Phase
from traincope.store import RankRecords


def own_work_of(*ranks: RankRecords) -> OwnWork:
    line = timeline(*ranks)
    work = own_work(line, analyze(line).ledger)
    assert work is not None
    return work


def test_own_work_is_relative_to_the_median_of_the_peers_in_each_step() -> None:
    """Step 0 is the warm-up. In step 1 rank 1 works 90, the others 60; in step 2 all work 60."""
    work = own_work_of(*lockstep([[60, 60, 60], [60, 90, 60], [60, 60, 60]], transfer_ns=10))
    assert work.ranks == (0, 1, 2)
    assert work.hosts == ("host-boot",) * 3
    assert work.steps.tolist() == [1, 2]
    assert work.own_ns.tolist() == [[60, 60], [90, 60], [60, 60]]
    assert work.excess_ratio.tolist() == [[0, 0], [0.5, 0], [0, 0]]


def test_stages_of_a_pipeline_are_not_peers() -> None:
    """Ranks 0, 1 of stage 0 work 50, rank 2 of stage 1 works 80 and rank 3 96: medians 50 and 88."""
    ranks = [
        rank(
            at,
            *(step(number, 100 * number, 100 * number + work) for number in (0, 1)),
            *(phase(Phase.FORWARD, 100 * number, 100 * number + work, at=number) for number in (0, 1)),
            coords={"pp": stage},
        )
        for at, (stage, work) in enumerate([(0, 50), (0, 50), (1, 80), (1, 96)])
    ]
    work = own_work_of(*ranks)
    assert work.own_ns[:, 0].tolist() == [50, 50, 80, 96]
    assert work.excess_ratio[:, 0].tolist() == pytest.approx([0, 0, 80 / 88 - 1, 96 / 88 - 1])


def test_unattributed_time_is_own_work() -> None:
    """A step takes 100, of which 40 are forward."""
    rows = (row for at in (0, 100) for row in (step(at // 100, at, at + 100), phase(Phase.FORWARD, at, at + 40)))
    assert own_work_of(rank(0, *rows)).own_ns.tolist() == [[100]]


def test_a_rank_without_a_step_has_no_own_work_in_it() -> None:
    whole, short = lockstep([[60, 60]] * 3, transfer_ns=10)[0], lockstep([[60, 60]] * 2, transfer_ns=10)[1]
    work = own_work_of(whole, short)
    assert work.steps.tolist() == [1, 2]
    assert np.isnan(work.own_ns[1, 1])
    assert np.isnan(work.excess_ratio[1, 1])
    assert work.excess_ratio[0, 1] == pytest.approx(0)


def test_own_work_without_a_counted_step_is_none() -> None:
    line = timeline(rank(0, phase(Phase.FORWARD, 0, 10)))
    assert own_work(line, analyze(line).ledger) is None


@pytest.mark.parametrize(("stages", "expected"), [((0, 1), ([0], [1])), ((1, 1), ([0, 1],))])
def test_actions_show_the_stages_of_ranks_without_a_mesh(
    stages: tuple[int, int], expected: tuple[list[int], ...]
) -> None:
    """A stage with more layers than another is no straggler: it has other work."""
    rows = [(step(0, 0, 100), action("F", 0, 50, stage=stage, microbatch=0)) for stage in stages]
    analysis = analyze(timeline(*(rank(number, *own) for number, own in enumerate(rows))))
    assert peers(analysis.timeline, analysis.ledger) == expected
