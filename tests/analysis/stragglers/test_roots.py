"""The root of jitter is the rank whose own delay the others wait for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.pipeline.orders import gpipe
from tests.analysis.pipeline.pipelines import Pipeline
from tests.timeline.build import Row, phase, timeline
from traincope.analysis import Analysis, Root, analyze
from traincope.analysis.stragglers.roots import Spans
from traincope.events import Phase


def delayed(
    stages: int, microbatches: int, *, of: Phase, by: dict[int, int], idly: dict[int, int] | None = None, name: str = ""
) -> Analysis:
    """Run GPipe with F = 10 and B = 20. `by`: delay of each stage. `idly`: delays that no rank waits for."""
    lengths = {(kind, s): ns for s in range(stages) for kind, ns in (("F", 10), ("B", 20))}
    pipeline = Pipeline(orders=gpipe(stages, microbatches), durations=lengths, begins=by)
    extra: dict[int, list[Row]] = {
        stage: [replace(phase(of, 0, ns), name=name)] for stage, ns in (by | (idly or {})).items()
    }
    return analyze(timeline(*pipeline.ranks(extra=extra)))


def test_one_data_wait_is_one_finding_with_its_cost_on_other_stages() -> None:
    """Stage 0 loads data for 150 of 300; stage 1 waits for it, in addition to the 30 of the schedule."""
    analysis = delayed(2, 4, of=Phase.DATA_WAIT, by={0: 150})
    assert analysis.jitter_roots == (Root(rank=0, term="data_wait", jitter_ns=150, peers=(1,)),)
    data, bubble = analysis.verdict
    assert (data.kind, data.ranks, data.estimated_gain_ratio) == ("data_bound", (0,), 0.5)
    assert data.evidence == (
        "1 of 2 ranks wait 50.0 % of step time for the next batch; "
        "during this the other stages of the pipeline idle 50.0 % of step time"
    )
    assert (bubble.kind, bubble.ranks) == ("pipeline_bubble", ())
    assert bubble.evidence == (
        "the pipeline idles 10.0 % of step time, not counting its wait for rank 0: 10.0 % schedule, "
        "0.0 % imbalance, 0.0 % jitter; theory for gpipe, 2 stages, 4 microbatches is 20.0 %"
    )
    assert bubble.advice == "Use 8 microbatches: the schedule's bubble falls from 20.0 % to 11.1 %."


def test_a_delay_too_small_for_its_own_finding_is_named_as_root_of_jitter() -> None:
    """Rank 1 collects garbage for 400 and is 390 late, in a step of 64 x 30 + 3 x 30 + 390.

    Rank 2 waits for it, rank 3 for rank 2: 390 each. Rank 0 waits later, for ranks without a delay then. Steps that
    follow each other save all 400, because rank 1 never idles between them.
    """
    analysis = delayed(4, 64, of=Phase.GC, by={1: 400})
    assert analysis.jitter_roots == (Root(rank=1, term="gc", jitter_ns=2 * 390, peers=(2, 3)),)
    (finding,) = analysis.verdict
    assert (finding.kind, finding.ranks) == ("pipeline_bubble", (1,))
    assert finding.estimated_gain_ratio == pytest.approx(400 / 2_400)
    assert "12.1 % jitter, 8.1 % while rank 1 collected garbage; theory" in finding.evidence
    assert finding.advice == (
        "Call gc.disable(), and gc.collect() between steps on all ranks at once, because the pipeline waits for "
        "rank 1: this saves an estimated 16.7 % of step time."
    )


def test_a_save_that_runs_in_the_background_is_not_advised_to() -> None:
    (finding,) = delayed(4, 64, of=Phase.CHECKPOINT_STALL, by={1: 400}, name="async_save checkpoint").verdict
    assert "8.1 % while rank 1 saved or loaded a checkpoint; theory" in finding.evidence
    assert finding.advice.startswith("Saves run in the background already, and only their start stops training: ")
    assert "because the pipeline waits for rank 1: this saves an estimated 16.7 %" in finding.advice


def test_a_delayed_rank_without_waiters_is_not_a_root() -> None:
    """Rank 3 is as busy as rank 0 at the same time, but no rank waits for it yet."""
    analysis = delayed(4, 8, of=Phase.DATA_WAIT, by={0: 60}, idly={3: 60})
    assert [(root.rank, root.peers) for root in analysis.jitter_roots] == [(0, (1, 2))]


def test_jitter_that_no_delay_explains_has_no_root() -> None:
    analysis = delayed(2, 4, of=Phase.OPTIMIZER, by={0: 150})
    assert analysis.jitter_roots == ()
    assert "Open the timeline" in analysis.verdict[0].advice


spans = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), max_size=6)


@given(spans_a=spans, spans_b=spans)
def test_parts_within_others_are_exact(spans_a: list[tuple[int, int]], spans_b: list[tuple[int, int]]) -> None:
    first, second = _apart(spans_a), _apart(spans_b)
    analysis = first.within(second)
    assert _instants(analysis) == _instants(first) & _instants(second)
    assert analysis.by_step(6).tolist() == [
        sum(first.start_ns[at] <= ns < first.end_ns[at] for ns in _instants(second)) if at < len(spans_a) else 0
        for at in range(6)
    ]


def _apart(gaps: list[tuple[int, int]]) -> Spans:
    """Build spans of (gap before, length). The n-th lies in step n."""
    borders = np.cumsum(np.array(gaps, dtype=np.int64).reshape(-1))
    return Spans(start_ns=borders[::2], end_ns=borders[1::2], step=np.arange(len(gaps)))


def _instants(spans: Spans) -> set[int]:
    pairs = zip(spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True)
    return {ns for start, end in pairs for ns in range(start, end)}
