"""Analysis of incomplete runs: results without evidence are absent."""

import numpy as np

from tests.analysis.lockstep import lockstep
from tests.timeline.build import collective, group, phase, rank, stall, step, timeline
from traincope.analysis import analyze
from traincope.events import NO_STEP, OPEN, Phase

DP = group("dp", 0, 1)


def test_a_run_without_steps_has_no_numbers() -> None:
    early = collective(10, 20, at=NO_STEP)
    analysis = analyze(timeline(rank(0, early, stall(early, 10, 20), groups=[DP]), rank(1, groups=[DP]), world_size=2))
    assert (analysis.median_step_ns, analysis.ledger.wall_ns, analysis.ledger.rank_steps) == (None, 0, 0)
    assert (analysis.ledger.share("forward"), analysis.comm, analysis.bubble, analysis.stragglers.named) == (
        None,
        (),
        None,
        (),
    )
    assert [finding.kind for finding in analysis.verdict] == ["no_steps"]


def test_a_run_without_any_record_of_the_training_thread_is_analysed() -> None:
    analysis = analyze(timeline(rank(0, phase(Phase.DATA_WAIT, 0, 9, thread="thread-7"))))
    assert [finding.kind for finding in analysis.verdict] == ["no_steps"]


def test_a_rank_with_no_step_does_not_hide_the_others() -> None:
    analysis = analyze(timeline(rank(0, step(0, 0, 100)), rank(1, step(0, 0, OPEN)), world_size=2))
    assert (analysis.ledger.wall_ns, analysis.ledger.rank_steps, analysis.median_step_ns) == (100, 1, 100)


def test_a_rank_cut_off_early_counts_with_the_steps_it_has() -> None:
    whole = lockstep([[60, 60]] * 4, transfer_ns=10)
    cut_off = lockstep([[60, 60]] * 2, transfer_ns=10)
    analysis = analyze(timeline(whole[0], cut_off[1]))
    assert [ledger.num_counted for ledger in analysis.ledger.ranks] == [3, 1]
    assert analysis.ledger.ranks[0].ambiguous_waits_ns.tolist() == [0, 0, 10, 10]


def test_the_median_step_excludes_the_warm_up() -> None:
    analysis = analyze(timeline(rank(0, step(0, 0, 1_000), step(1, 1_000, 1_010), step(2, 1_010, 1_030))))
    assert (analysis.median_step_ns, analysis.ledger.excluded_steps) == (15, (0,))


def test_the_same_timeline_gives_the_same_result_and_does_not_change() -> None:
    run_timeline = timeline(*lockstep([[60, 90]] * 3, transfer_ns=10))
    before = [rank.main.copy() for rank in run_timeline.ranks]
    first, second = analyze(run_timeline), analyze(run_timeline)
    assert first.verdict == second.verdict
    assert first.comm == second.comm
    assert all(np.array_equal(rank.main, records) for rank, records in zip(run_timeline.ranks, before, strict=True))
