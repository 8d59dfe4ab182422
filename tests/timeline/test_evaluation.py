"""When a rank evaluated, whatever lies inside."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.timeline.build import action, phase, rank, step, timeline
from traincope.events import OPEN, Phase
from traincope.timeline import evaluations

spans = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda drawn: (drawn[0], sum(drawn)))


def test_overlapping_evaluations_are_one() -> None:
    first, inside, after = (
        phase(Phase.EVALUATION, 10, 50),
        phase(Phase.EVALUATION, 20, 30),
        phase(Phase.FORWARD, 50, 60),
    )
    last = action("F", 70, 80, stage=0, microbatch=0, of=Phase.EVALUATION)
    found = evaluations(timeline(rank(0, step(0, 0, 90), first, inside, after, last)).ranks[0])
    assert (found.starts_ns.tolist(), found.ends_ns.tolist()) == ([10, 70], [50, 80])


def test_one_that_never_ended_lasts_to_the_ranks_last_instant() -> None:
    rows = (phase(Phase.EVALUATION, 10, OPEN), phase(Phase.GC, 20, 33))
    found = evaluations(timeline(rank(0, *rows, ending=None)).ranks[0])
    assert (found.starts_ns.tolist(), found.ends_ns.tolist()) == ([10], [33])


def test_other_threads_evaluate_nothing() -> None:
    found = evaluations(timeline(rank(0, step(0, 0, 9), phase(Phase.EVALUATION, 1, 5, thread="thread-7"))).ranks[0])
    assert found.cover(np.array([3])).tolist() == [False]


@given(drawn=st.lists(spans, max_size=6))
def test_an_instant_is_covered_when_any_of_them_is_open(drawn: list[tuple[int, int]]) -> None:
    rows = [phase(Phase.EVALUATION, *span) for span in sorted(drawn)]
    covered = evaluations(timeline(rank(0, step(0, 0, 99), *rows)).ranks[0]).cover(np.arange(99))
    assert covered.tolist() == [any(start <= ns < end for start, end in drawn) for ns in range(99)]
