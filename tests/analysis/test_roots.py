"""Jitter is laid at the door of the rank whose own delay the others waited for, and nobody else's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.orders import gpipe
from tests.analysis.pipelines import Pipeline
from tests.timeline.build import Row, phase, timeline
from traincope.analysis import Analysis, Root, analyze
from traincope.analysis.roots import Spans
from traincope.events import Phase


def delayed(
    stages: int, microbatches: int, *, of: Phase, by: dict[int, int], idly: dict[int, int] | None = None
) -> Analysis:
    """GPipe with F = 10 and B = 20; the stages in `by` begin so late, those in `idly` have as much to do beside."""
    lengths = {(kind, s): ns for s in range(stages) for kind, ns in (("F", 10), ("B", 20))}
    pipeline = Pipeline(orders=gpipe(stages, microbatches), durations=lengths, begins=by)
    extra: dict[int, list[Row]] = {stage: [phase(of, 0, ns)] for stage, ns in (by | (idly or {})).items()}
    return analyze(timeline(*pipeline.ranks(extra=extra)))


def test_one_data_wait_is_told_once_with_what_it_costs_the_other_stages() -> None:
    """Stage 0 fetches for 150 of 300; stage 1 waits for it, beside the 30 that the schedule takes."""
    found = delayed(2, 4, of=Phase.DATA_WAIT, by={0: 150})
    assert found.jitter_roots == (Root(rank=0, term="data_wait", jitter_ns=150, peers=(1,)),)
    data, bubble = found.verdict
    assert (data.kind, data.ranks, data.estimated_gain_ratio) == ("data_bound", (0,), 0.5)
    assert data.evidence == (
        "1 of 2 ranks wait 50.0 % of a step for the next batch; "
        "the other stages of the pipeline idle 50.0 % of a step meanwhile"
    )
    assert (bubble.kind, bubble.ranks) == ("pipeline_bubble", ())
    assert bubble.evidence == (
        "the pipeline idles 10.0 % of a step beside its waiting for rank 0: 10.0 % schedule, 0.0 % uneven stages, "
        "0.0 % jitter; theory for gpipe, 2 stages, 4 microbatches is 20.0 %"
    )
    assert bubble.advice == "with 8 microbatches the schedule idles 11.1 % by theory"


def test_a_delay_too_small_for_a_finding_of_its_own_is_named_by_the_jitter_it_makes() -> None:
    """Rank 1 collects garbage for 400 and is 390 late, in a step of 64 x 30 + 3 x 30 + 390.

    Rank 2 waits for it, rank 3 for rank 2: 390 each. Rank 0 waits later, for nobody that is delayed then.
    """
    found = delayed(4, 64, of=Phase.GC, by={1: 400})
    assert found.jitter_roots == (Root(rank=1, term="gc", jitter_ns=2 * 390, peers=(2, 3)),)
    (finding,) = found.verdict
    assert (finding.kind, finding.ranks) == ("pipeline_bubble", (1,))
    assert finding.estimated_gain_ratio == pytest.approx(390 / 2_400)
    assert "12.1 % jitter, 8.1 % while rank 1 collected garbage; theory" in finding.evidence
    assert finding.advice == (
        "call gc.disable() and collect between steps, on all ranks at once: the pipeline waits for rank 1"
    )


def test_who_is_delayed_while_nobody_waits_for_it_is_no_root() -> None:
    """Rank 3 is as busy as rank 0 all the while, but its turn has not come."""
    found = delayed(4, 8, of=Phase.DATA_WAIT, by={0: 60}, idly={3: 60})
    assert [(root.rank, root.peers) for root in found.jitter_roots] == [(0, (1, 2))]


def test_jitter_that_no_delay_explains_has_no_root() -> None:
    found = delayed(2, 4, of=Phase.OPTIMIZER, by={0: 150})
    assert found.jitter_roots == ()
    assert "look for late ranks" in found.verdict[0].advice


spans = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), max_size=6)


@given(mine=spans, theirs=spans)
def test_parts_within_others_are_exact(mine: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> None:
    first, second = _apart(mine), _apart(theirs)
    found = first.within(second)
    assert _instants(found) == _instants(first) & _instants(second)
    assert found.by_step(6).tolist() == [
        sum(first.start_ns[at] <= ns < first.end_ns[at] for ns in _instants(second)) if at < len(mine) else 0
        for at in range(6)
    ]


def _apart(gaps: list[tuple[int, int]]) -> Spans:
    """(gap before, length) of each; the n-th lies in step n."""
    borders = np.cumsum(np.array(gaps, dtype=np.int64).reshape(-1))
    return Spans(start_ns=borders[::2], end_ns=borders[1::2], step=np.arange(len(gaps)))


def _instants(spans: Spans) -> set[int]:
    pairs = zip(spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True)
    return {ns for start, end in pairs for ns in range(start, end)}
