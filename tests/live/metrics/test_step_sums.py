"""Sums of steps that are skipped, undone, or too old to be undone."""

from dataclasses import replace

from traincope.live.metrics.step_sums import MAX_STANDING, StepSums, Sum
from traincope.store.job.attempts import Rollback
from traincope.store.side_tables.rows import MergedSteps, Row

ROW = Row(rank=0, step=0, start_ns=0, wall_ns=10, own_ns=0, anomalous=False, terms={})
FOUR = StepSums().with_rows(replace(ROW, step=step) for step in range(4))


def back(*, undone: int, after: int) -> Rollback:
    return Rollback(at_ns=0, step=0, why="", undone=undone, after=after)


def test_a_rollback_takes_out_the_latest_rows_before_it() -> None:
    """Steps 1 and 2 are undone. Step 3 came after, and another rollback undoes it and step 0."""
    once = FOUR.with_skipped(2).with_rollback(back(undone=2, after=3)).settled()
    assert (once.total, once.undone) == (Sum(steps=2, ns=20), Sum(steps=2, ns=20, skipped_steps=1, skipped_ns=10))
    twice = once.with_rollback(back(undone=2, after=4)).settled()
    assert (twice.total.steps, twice.undone.steps, twice.complete) == (0, 4, True)


def test_a_skipped_step_counts_without_its_checkpoint_stall() -> None:
    sums = FOUR.with_skipped(1).with_stall(1, 4).with_stall(3, 99).settled()
    assert sums.total == Sum(steps=4, ns=10 + 6 + 10 + 0, skipped_steps=1, skipped_ns=6)


def test_a_merged_row_has_its_stalls_as_a_term_and_is_undone_as_a_whole() -> None:
    merged = replace(ROW, wall_ns=50, terms={"checkpoint_stall": 5}, merged=MergedSteps(num_steps=5, lengths_ns={}))
    sums = StepSums().with_rows([replace(merged, step=4), replace(ROW, step=5)])
    assert sums.settled().total == Sum(steps=6, ns=45 + 10)
    undone = sums.with_rollback(back(undone=2, after=6)).settled()
    assert (undone.total.steps, undone.undone, undone.complete) == (0, Sum(steps=6, ns=55), True)


def test_rows_that_are_too_old_cannot_be_undone() -> None:
    sums = StepSums().with_rows(replace(ROW, step=step) for step in range(MAX_STANDING + 3)).settled()
    assert (len(sums.standing), sums.total.steps) == (MAX_STANDING, MAX_STANDING + 3)
    assert sums.with_rollback(back(undone=MAX_STANDING, after=MAX_STANDING + 3)).complete
    assert not sums.with_rollback(back(undone=MAX_STANDING + 1, after=MAX_STANDING + 3)).complete


def test_a_rollback_may_also_undo_steps_of_earlier_attempts() -> None:
    """It undoes the four steps of this attempt, and two of the one before."""
    sums = FOUR.with_rollback(back(undone=6, after=4)).settled()
    assert (sums.total.steps, sums.undone.steps, sums.complete) == (0, 4, True)
