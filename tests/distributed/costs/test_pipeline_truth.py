"""Bubbles of real pipelines with known action times. `python -m evaluation.truth.pipelines.bubble` runs all cases."""

from pathlib import Path

import pytest

from evaluation.truth.pipelines.cases import SLOWER, Case, sent, truth, units
from evaluation.truth.pipelines.lateness import late_ratio
from evaluation.truth.pipelines.measuring import measure, measure_once
from tests.distributed.ranks.pool import Pool
from traincope.plan.pipeline.actions import EQUAL as EQUAL_TIMES
from traincope.plan.pipeline.actions import Times
from traincope.plan.pipeline.bubble import bubble_ratio
from traincope.plan.pipeline.orders import Shape, orders
from traincope.plan.pipeline.schedule import timetable

WITHIN = 0.01
"""Tolerance, as a share of a step."""

TWO = Shape(ranks=2, microbatches=4)
TWO_TWICE = Shape(ranks=2, microbatches=4, chunks=2)
FOUR = Shape(ranks=4, microbatches=8)
FOUR_TWICE = Shape(ranks=4, microbatches=8, chunks=2)

EQUAL = [
    Case(schedule="naive", shape=TWO),
    Case(schedule="gpipe", shape=TWO, clips=True),
    Case(schedule="interleaved", shape=TWO_TWICE),
    Case(schedule="zb-v", shape=FOUR_TWICE, clips=True),
    Case(schedule="1f1b", shape=TWO, ring=2),
]
UNEQUAL = Times(forward=1.0, backward_input=1.5, backward_weight=0.75)
SLOW = [
    Case(schedule="gpipe", shape=TWO, slow_stage=1),
    Case(schedule="zb-v", shape=TWO_TWICE, slow_stage=2, clips=True),
    Case(schedule="zb-1p", shape=FOUR, slow_stage=2),
    Case(schedule="dualpipev", shape=TWO_TWICE, slow_stage=2, times=UNEQUAL),
    Case(schedule="zb-v", shape=FOUR_TWICE, times=UNEQUAL),
]
LATE = [
    Case(schedule="1f1b", shape=TWO, late=2.0),
    Case(schedule="gpipe", shape=TWO, slow_stage=1, late=2.0),
]

USUAL = (EQUAL[1], EQUAL[4], SLOW[1], LATE[1])
"""Cases of `make test`. `make test-timing` runs all of these, and `make truth-bubble` more."""


def named(case: Case) -> str:
    ring, late = f"-ring-{case.ring}" if case.ring > 1 else "", "-late" if case.late else ""
    unequal = "-unequal" if case.times == UNEQUAL else ""
    return f"{case.schedule}-{case.shape.ranks}-{case.slow_stage}{ring}{late}{unequal}"


@pytest.mark.parametrize("case", EQUAL, ids=named)
def test_the_truth_of_equal_stages_agrees_with_the_papers_formula(case: Case) -> None:
    assert truth(case).imbalance == pytest.approx(0)
    assert truth(case).schedule == pytest.approx(bubble_ratio(case.schedule, case.shape))


def test_the_truth_of_a_slow_stage_agrees_with_a_hand_calculation() -> None:
    """GPipe, M = 4, stage 1 a quarter slower: a step takes 1 + 4 x 1.25 of F + B, ideally 1.125 x 5."""
    shares = truth(Case(schedule="gpipe", shape=TWO, slow_stage=1))
    step, mean = 1 + 4 * SLOWER, (1 + SLOWER) / 2
    assert shares.schedule == pytest.approx(mean / step)
    assert shares.both == pytest.approx((2 * step - 4 * (1 + SLOWER)) / (2 * step))


@pytest.mark.parametrize("slow", [None, 2])
@pytest.mark.parametrize("times", [EQUAL_TIMES, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("schedule", ["zb-v", "dualpipev"])
@pytest.mark.parametrize("shape", [TWO_TWICE, FOUR_TWICE], ids=str)
def test_the_truth_of_a_v_agrees_with_the_timetable(
    shape: Shape, schedule: str, times: Times, slow: int | None
) -> None:
    """The truth iterates until nothing changes; the timetable follows an executable order."""
    shares = truth(Case(schedule=schedule, shape=shape, times=times, slow_stage=slow, clips=True))
    work = {} if slow is None else {slow: SLOWER}
    played = timetable(orders(schedule, shape), times, work=work)
    assert shares.both == pytest.approx(played.idle_ratio)
    assert (shares.imbalance > 1e-9) == (slow is not None)


def test_the_truth_of_dualpipev_agrees_with_a_hand_calculation() -> None:
    """Two ranks, four microbatches, F = I = W: each works 24 units, and the last begins one after the first."""
    assert truth(Case(schedule="dualpipev", shape=TWO_TWICE)).schedule == pytest.approx(1 / 25)


def test_the_truth_of_slow_links_agrees_with_a_hand_calculation() -> None:
    """GPipe, M = 4, half an F on the wire: stage 1 begins and the first stage ends that much later; 15 become 16."""
    shares = truth(Case(schedule="gpipe", shape=TWO, link=0.5))
    assert (shares.schedule, shares.imbalance, shares.transfer) == pytest.approx((3 / 16, 0, 1 / 16))


def test_the_truth_of_a_late_action_agrees_with_a_hand_calculation() -> None:
    """GPipe, M = 4: two more units in the third forward delay the end of stage 1 by two; 15 become 17.

    The first stage works in both of these units, and the other stage idles.
    """
    shares = truth(Case(schedule="gpipe", shape=TWO, late=2.0))
    assert (shares.schedule, shares.imbalance, shares.jitter) == pytest.approx((3 / 17, 0, 1 / 17))


@pytest.mark.timing
@pytest.mark.parametrize("case", [Case(schedule="1f1b", shape=TWO, link=0.5, slow_stage=1)], ids=named)
def test_slow_links_of_a_pipeline_count_as_transfer_and_not_as_wait(
    case: Case, two_ranks: Pool, tmp_path: Path
) -> None:
    measurement = measure(two_ranks, case, tmp_path / "run")
    expected, measured = measurement.truth, measurement.shares
    assert measured.transfer == pytest.approx(expected.transfer, abs=WITHIN)
    assert measured.schedule == pytest.approx(expected.schedule, abs=WITHIN)
    assert measured.imbalance == pytest.approx(expected.imbalance, abs=WITHIN)
    assert measurement.analysis.stragglers.named == ()


def test_messages_stay_on_the_axis_they_are_sent_on() -> None:
    """Count messages per axis.

    Each of 2 x 2 ranks sends once round in each of 4 forwards and 4 backwards, and to the other stage 4 times per pass.
    """
    assert sent(Case(schedule="naive", shape=TWO, ring=2)) == {"pp": 2 * 4 * 2, "cp": 2 * 2 * 8}


def test_a_sleep_is_counted_if_it_ends_more_than_half_a_millisecond_late() -> None:
    assert late_ratio([0.0001, 0.0004, 0.0006, 0.02]) == 0.5


@pytest.mark.parametrize("case", USUAL, ids=named)
def test_a_pipeline_is_recognised_and_its_steps_last_at_least_their_actions(
    case: Case, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pool: Pool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[case.ranks])
    measurement = measure_once(pool, case, tmp_path / "run")
    bubble, expected = measurement.analysis.bubble, truth(case)
    assert bubble is not None
    assert (bubble.schedule, bubble.shape) == (case.schedule, case.shape)
    assert measurement.sent == sent(case)
    assert measurement.added > -0.01  # steps last at least as long as their actions, but for medians
    ran = units(measurement.case)
    assert all(ran[action] >= asked for action, asked in units(case).items())
    assert measurement.shares.schedule > 0
    waited, recorded = measurement.ring
    assert (recorded > 0) == (case.ring > 1)
    assert (waited > 0) == (case.ring > 1)  # how long depends on the machine: a rank woken late is waited for less
    if case.slow_stage is None and not case.late:
        assert bubble.theory_ratio == pytest.approx(expected.schedule)


@pytest.mark.timing
@pytest.mark.parametrize("case", EQUAL + SLOW + LATE, ids=named)
def test_schedule_imbalance_and_jitter_are_measured_within_a_point(
    case: Case, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pool: Pool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[case.ranks])
    measurement = measure(pool, case, tmp_path / "run")
    expected, measured = measurement.truth, measurement.shares
    assert measured.schedule == pytest.approx(expected.schedule, abs=WITHIN)
    assert measured.imbalance == pytest.approx(expected.imbalance, abs=WITHIN)
    assert measurement.sent == sent(case)
    waited, recorded = measurement.ring
    assert recorded == pytest.approx(waited, abs=WITHIN)
    assert (waited > 0.05) == (case.ring > 1)
    assert abs(measurement.beyond_known) <= WITHIN
    minimum, maximum = measurement.known_fraction
    assert minimum - WITHIN <= measurement.fraction <= maximum + WITHIN
    bubble = measurement.analysis.bubble
    assert bubble is not None
    assert (bubble.schedule, bubble.shape) == (case.schedule, case.shape)
    if case.slow_stage is None and not case.late and case.times == EQUAL_TIMES:
        assert (bubble.theory_ratio, bubble.replay_ratio) == pytest.approx((expected.schedule,) * 2, abs=WITHIN)
