"""Real trainings of the score whose answers are known, and how the score counts."""

import random
from pathlib import Path

import pytest

from evaluation.score.stragglers.cases import DELAYED, LAYOUTS, TERMS, Case, Kind, cases, healthy
from evaluation.score.stragglers.score import Name, Outcome, Tally, run
from evaluation.score.stragglers.training import GENERATOR_SECONDS, STEP_SECONDS
from traincope.inject import FAULTS, parse_injections
from traincope.inject.kinds.slowness import delay_seconds

CASE = Case(kind=Kind.STEADY, layout="ddp", size=4, steps=100, ratio=0.05, ranks=(2,), phase="forward")
HEALTHY = Case(kind=Kind.HEALTHY, layout="ddp", size=4, steps=100)


def named(*ranks: int, case: Case = CASE) -> Outcome:
    names = (Name(rank=rank, term="forward", late_seconds=0.015, confidence="high", shape="steady") for rank in ranks)
    return Outcome(case=case, named=tuple(names), slow_steps=(), steps=100)


def tally(*outcomes: Outcome) -> Tally:
    result = Tally()
    for outcome in outcomes:
        result.add(outcome)
    return result


def test_right_needs_all_slow_ranks_and_no_other() -> None:
    assert tally(named(2)).passes
    assert not tally(named(2), named(1, 2)).passes
    assert not tally(named()).passes
    assert tally(*[named(2)] * 19, named()).passes
    assert not tally(*[named(2)] * 18, named()).passes
    assert not tally(named(case=HEALTHY)).passes


def test_one_name_in_a_healthy_run_fails_the_score() -> None:
    assert tally(named(2), named(case=HEALTHY)).passes
    assert not tally(named(2), named(0, case=HEALTHY)).passes


@pytest.mark.parametrize("kind", DELAYED)
def test_the_mean_delay_is_the_ratio_of_a_step(kind: Kind) -> None:
    case = Case(kind=kind, layout="ddp", size=4, steps=100, ratio=0.05, ranks=(1,), phase="backward")
    (injection,) = parse_injections(case.fault, known=FAULTS)
    delays = [delay_seconds(injection, step) for step in range(case.first_step, case.all_steps)]
    assert len(delays) == 100
    assert sum(delays) / 100 == pytest.approx(0.05 * STEP_SECONDS, rel=1e-3)


def test_cases_have_every_kind_layout_and_phase() -> None:
    chosen = list(cases(random.Random(3), count=60))
    assert {case.kind for case in chosen} == set(Kind) - {Kind.HEALTHY, Kind.NOISY}
    assert {case.layout for case in chosen} == set(LAYOUTS)
    assert {case.phase for case in chosen} == {*TERMS, ""}
    assert {case.kind for case in healthy(random.Random(3), count=10)} == {Kind.HEALTHY, Kind.NOISY}


@pytest.mark.sweep
def test_a_rank_that_is_10_ms_late_in_forward_is_named_with_its_time_in_a_loop_of_11_collectives(
    tmp_path: Path,
) -> None:
    seconds = 0.01
    case = Case(
        kind=Kind.STEADY,
        layout="plain",
        size=3,
        steps=300,
        ratio=seconds / STEP_SECONDS,
        ranks=(1,),
        phase="forward",
    )
    (found,) = run(case, tmp_path).named
    assert (found.rank, found.term, found.confidence) == (1, "forward", "high")
    assert found.late_seconds == pytest.approx(seconds, rel=0.4)


@pytest.mark.sweep
def test_a_rank_that_is_15_ms_late_in_a_data_generator_is_named_with_its_time(tmp_path: Path) -> None:
    """Without a DataLoader no probe sees the data."""
    (found,) = run(Case(kind=Kind.HEALTHY, layout="generator", size=3, steps=300), tmp_path).named
    assert (found.rank, found.term, found.confidence) == (1, "unattributed", "high")
    assert found.late_seconds == pytest.approx(GENERATOR_SECONDS, rel=0.4)
