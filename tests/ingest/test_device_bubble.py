"""The bubble of imported pipelines whose actions are annotated as torch's schedules do it, computed by hand.

Two stages, two microbatches, F = 10 us, B = 20 us, 2 us on the wire. A first launch takes 3 us.
"""

from pathlib import Path

import pytest

from tests.virtual_gpu.actions import Action, Program, after, annotated, forward, kernel, step
from tests.virtual_gpu.kineto import write_traces
from tests.virtual_gpu.programs import PROGRAMS, back, exchange, receive, send_activations
from traincope.analysis import Analysis, analyze
from traincope.ingest import import_traces
from traincope.timeline import open_run

US = 1_000


def F(stage: int, microbatch: int, us: int = 10) -> Action:  # noqa: N802
    return annotated(f"PP:{stage}F{microbatch}", None, forward(kernel(us), name="## forward ##"))


def backward(kind: str, stage: int, microbatch: int, us: int) -> Action:
    return annotated(f"PP:{stage}{kind}{microbatch}", None, back(us))


def one_forward_one_backward(*, steps: int, slower: int = 1) -> Program:
    """1F1B. The last stage takes `slower` times as long."""
    first = (
        *(F(0, 0), *send_activations(), F(0, 1), *exchange()),
        *(backward("B", 0, 0, 20), *receive(), backward("B", 0, 1, 20)),
    )
    last = (
        *(*receive(), F(1, 0, 10 * slower), backward("B", 1, 0, 20 * slower), *exchange()),
        *(F(1, 1, 10 * slower), backward("B", 1, 1, 20 * slower), *send_activations()),
    )
    return Program(ranks=tuple(tuple(step(number, *body) for number in range(steps)) for body in (first, last)))


def zero_bubble() -> Program:
    """Each backward is I and W of 10 us. W runs while its stage would wait."""

    def split(stage: int, microbatch: int) -> tuple[Action, Action]:
        return backward("I", stage, microbatch, 10), backward("W", stage, microbatch, 10)

    first = (F(0, 0), *send_activations(), F(0, 1), *exchange(), *split(0, 0), *receive(), *split(0, 1))
    input_0, weights_0 = split(1, 0)
    input_1, weights_1 = split(1, 1)
    last = (
        *(*receive(), F(1, 0), input_0, *send_activations(), weights_0, *after("received", stream=40, on=7)),
        *(F(1, 1), input_1, *send_activations(), weights_1),
    )
    return Program(ranks=((step(0, *first),), (step(0, *last),)))


def analysis_of(program: Program, folder: Path) -> Analysis:
    import_traces(write_traces(program, folder / "traces"), folder / "run")
    return analyze(open_run(folder / "run"))


def terms(analysis: Analysis, rank: int, step_at: int) -> dict[str, int]:
    """Terms of a step that took time, in us."""
    values = analysis.ledger.ranks[rank].terms
    return {name: int(ns[step_at]) // US for name, ns in values.items() if ns is not None and ns[step_at]}


@pytest.mark.parametrize("rank", [0, 1])
def test_1f1b_in_a_usual_step(rank: int, tmp_path: Path) -> None:
    """(p - 1) (F + B) = 30 us of schedule, two messages on the way. The exchange ends when both sides have sent: 2 us
    that no replay explains."""
    analysis = analysis_of(one_forward_one_backward(steps=3), tmp_path)
    assert terms(analysis, rank, 1) == {
        "forward": 20,
        "backward": 40,
        "bubble.schedule": 30,
        "exposed_transfer[pp]": 4,
        "bubble.jitter": 2,
    }
    assert analysis.bubble is not None
    assert (analysis.bubble.schedule, analysis.bubble.theory_ratio) == ("1f1b", pytest.approx(1 / 3))


def test_the_first_step_of_a_late_stage_ends_before_its_cool_down(tmp_path: Path) -> None:
    """Its GPU has nothing more to do after 77 us, 22 us before the first stage. Later steps contain that time."""
    analysis = analysis_of(one_forward_one_backward(steps=3), tmp_path)
    assert terms(analysis, 1, 0)["bubble.jitter"] == 2 - 22
    assert analysis.ledger.ranks[1].wall_ns.tolist() == [77 * US, 96 * US, 96 * US]


def test_a_slow_stage_is_imbalance(tmp_path: Path) -> None:
    """The stages work for 60 and 120 us, on average 90: (F + B) = 45 us of schedule. As they are, the step lasts 10 +
    120 + 20 us, so they idle for 90 and 30 us."""
    analysis = analysis_of(one_forward_one_backward(steps=1, slower=2), tmp_path)
    bubbles = [
        {name: us for name, us in terms(analysis, rank, 0).items() if name in ("bubble.schedule", "bubble.imbalance")}
        for rank in (0, 1)
    ]
    assert bubbles == [
        {"bubble.schedule": 45, "bubble.imbalance": 45},
        {"bubble.schedule": 45, "bubble.imbalance": -15},
    ]


def test_zero_bubble(tmp_path: Path) -> None:
    """The step lasts 10 + 60 + 10 us for 60 us of work per stage."""
    analysis = analysis_of(zero_bubble(), tmp_path)
    assert [terms(analysis, rank, 0)["bubble.schedule"] for rank in (0, 1)] == [20, 20]
    assert terms(analysis, 0, 0) == {
        "forward": 20,
        "backward": 40,
        "bubble.schedule": 20,
        "exposed_transfer[pp]": 4,
        "launch_gap": 3,
    }


def test_without_annotations_there_is_no_bubble(tmp_path: Path) -> None:
    assert analysis_of(PROGRAMS["1F1B"], tmp_path).bubble is None


def test_without_the_trace_of_a_stage_there_is_no_bubble(tmp_path: Path) -> None:
    program = one_forward_one_backward(steps=2)
    partly = Program(ranks=program.ranks, untraced=frozenset({1}))
    assert analysis_of(partly, tmp_path).bubble is None
