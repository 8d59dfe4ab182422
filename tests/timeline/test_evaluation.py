"""Evaluation times of a rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timeline.build import Row, action, phase, rank, step, timeline
from traincope.events import OPEN, Phase
from traincope.timeline import evaluations

spans = st.tuples(st.integers(1, 60), st.integers(0, 20)).map(lambda drawn: (drawn[0], sum(drawn)))


def test_overlapping_evaluations_are_one() -> None:
    first, inside, after = (
        phase(Phase.EVALUATION, 10, 50),
        phase(Phase.EVALUATION, 20, 30),
        phase(Phase.FORWARD, 50, 60),
    )
    last = action("F", 70, 80, stage=0, microbatch=0, of=Phase.EVALUATION)
    result = evaluations(timeline(rank(0, step(0, 0, 90), first, inside, after, last)).ranks[0])
    assert (result.starts_ns.tolist(), result.ends_ns.tolist()) == ([10, 70], [50, 80])


def test_an_open_evaluation_lasts_to_the_ranks_last_instant() -> None:
    rows = (phase(Phase.EVALUATION, 10, OPEN), phase(Phase.GC, 20, 33))
    result = evaluations(timeline(rank(0, *rows, ending=None)).ranks[0])
    assert (result.starts_ns.tolist(), result.ends_ns.tolist()) == ([10], [33])


def test_evaluations_on_other_threads_do_not_count() -> None:
    result = evaluations(timeline(rank(0, step(0, 0, 9), phase(Phase.EVALUATION, 1, 5, thread="thread-7"))).ranks[0])
    assert result.cover(np.array([3])).tolist() == [False]


def covered_by(*rows: Row) -> list[tuple[int, int]]:
    """Return the evaluated instants of two forwards without gradients, at [10, 20) and [40, 50), and these rows."""
    forwards = phase(Phase.EVALUATION, 10, 20), phase(Phase.EVALUATION, 40, 50)
    of = evaluations(timeline(rank(0, *sorted((*forwards, *rows), key=lambda row: row.start_ns))).ranks[0])
    return list(zip(of.starts_ns.tolist(), of.ends_ns.tolist(), strict=True))


def test_time_between_two_forwards_of_an_evaluation_is_evaluation() -> None:
    fetched, cleaned = phase(Phase.DATA_WAIT, 22, 35), phase(Phase.GC, 36, 37)
    assert covered_by(step(0, 0, 90), fetched, cleaned) == [(10, 50)]


@pytest.mark.parametrize(
    "row",
    [
        phase(Phase.FORWARD, 25, 30),
        phase(Phase.BACKWARD, 5, 60),
        phase(Phase.OPTIMIZER, 15, 22),
        phase(Phase.CHECKPOINT_STALL, 30, OPEN),
        action("F", 25, 30, stage=0, microbatch=0),
        step(0, 0, 30),
        step(1, 30, 90),
    ],
)
def test_training_or_a_step_border_separates_two_evaluations(row: Row) -> None:
    assert covered_by(row) == [(10, 20), (40, 50)]


def test_a_compilation_is_no_evaluation() -> None:
    """In the first forward, between both, and across the end of the second."""
    compiled = (phase(Phase.COMPILE, *span) for span in ((12, 18), (22, 25), (44, 60)))
    assert covered_by(step(0, 0, 90), *compiled) == [(10, 12), (18, 22), (25, 44)]


@given(drawn=st.lists(spans, max_size=6), trained=st.lists(spans, max_size=3), compiled=st.sets(st.integers(0, 40)))
def test_random_instants_are_covered_as_the_definition_requires(
    drawn: list[tuple[int, int]], trained: list[tuple[int, int]], compiled: set[int]
) -> None:
    """`compiled`: instants n at which [2 n, 2 n + 1) is a compilation."""
    rows = [phase(Phase.EVALUATION, *span) for span in drawn] + [phase(Phase.FORWARD, *span) for span in trained]
    rows += [phase(Phase.COMPILE, 2 * at, 2 * at + 1) for at in compiled]
    rows.sort(key=lambda row: row.start_ns)
    covered = evaluations(timeline(rank(0, step(0, 0, 99), *rows)).ranks[0]).cover(np.arange(99))

    def between(ns: int) -> bool:
        before, after = [end for _, end in drawn if end <= ns], [start for start, _ in drawn if start > ns]
        return bool(before and after) and not any(start <= min(after) and end >= max(before) for start, end in trained)

    holes = {2 * at for at in compiled}
    expected = [ns not in holes and (any(start <= ns < end for start, end in drawn) or between(ns)) for ns in range(99)]
    assert covered.tolist() == expected
