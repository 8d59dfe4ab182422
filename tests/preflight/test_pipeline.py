"""Bubbles, unbalanced stages and remedies, against formulas of papers and sums by hand."""

import numpy as np
import pytest

from traincope.plan.pipeline.bubble import bubble_ratio
from traincope.plan.pipeline.orders import Shape
from traincope.preflight.judging.costs import ConfiguredPipeline, stage_costs
from traincope.preflight.judging.findings import Kind
from traincope.preflight.judging.pipeline import judge_pipeline
from traincope.preflight.judging.remedies import Change, remedies, shortest_split
from traincope.preflight.measurements import Round, StageTimes, Training
from traincope.preflight.measuring.training import halves

LAYER_SECONDS = 0.01


def pipeline(*, ranks: int = 4, microbatches: int = 8, layers: int = 8, schedule: str = "1f1b", **more):  # type: ignore[no-untyped-def]
    shape = Shape(ranks=ranks, microbatches=microbatches, chunks=2 if schedule in ("interleaved", "zb-v") else 1)
    return ConfiguredPipeline(schedule=schedule, shape=shape, layers=layers, **{"sequences": 32, "batch": 32} | more)


def kinds(seconds: float) -> dict[str, float]:
    """Forward and backward of a stage: a third and two thirds."""
    return {"F": seconds / 3, "B": 2 * seconds / 3}


def trained(configured, factors=(), *, bubble: float = 0.1, second=None, steps: int = 20) -> Training:  # type: ignore[no-untyped-def]
    """A training whose stages take their layers' time, times `factors` (in the second half: `second`)."""
    stages = []
    for stage, layers in enumerate(configured.split):
        base = LAYER_SECONDS * len(layers)
        first = dict(factors).get(stage, 1.0)
        then = first if second is None else dict(second).get(stage, 1.0)
        seconds = {Round.FIRST: kinds(base * first), Round.SECOND: kinds(base * then)}
        stages.append(StageTimes(stage=stage, ranks=(stage,), seconds=seconds, bubble_ratio=bubble, num_steps=steps))
    return Training(
        steps=steps, step_seconds=1.0, schedule="1f1b", microbatches=8, theory_ratio=3 / 11, stages=tuple(stages)
    )


def judged(configured, training, alarm: float = 0.15):  # type: ignore[no-untyped-def]
    result = judge_pipeline(training, configured, alarm_ratio=alarm)
    assert result is not None
    return result


def test_equal_stages_are_predicted_by_the_formula() -> None:
    """1F1B: (P - 1) / (M + P - 1) = 3 / 11, and 11 slots of two layers."""
    result = judged(pipeline(), trained(pipeline()))
    assert result.predicted_ratio == pytest.approx(3 / 11)
    assert result.predicted_seconds == pytest.approx(11 * 2 * LAYER_SECONDS)
    assert result.findings == ()
    assert result.remedies == ()


def test_rounds_of_accumulation_multiply_the_predicted_time() -> None:
    assert judged(pipeline(rounds=3), trained(pipeline())).predicted_seconds == pytest.approx(33 * 2 * LAYER_SECONDS)


@pytest.mark.parametrize(("bubble", "alarmed"), [(0.149, False), (0.151, True)])
def test_the_alarm_is_at_its_limit(bubble: float, alarmed: bool) -> None:
    findings = judged(pipeline(), trained(pipeline(), bubble=bubble)).findings
    assert [finding.kind for finding in findings] == [Kind.BUBBLE] * alarmed


def test_the_alarm_can_be_set() -> None:
    assert judged(pipeline(), trained(pipeline(), bubble=0.27), alarm=0.3).findings == ()


def test_remedies_are_the_formulas_of_papers() -> None:
    """More microbatches: 3 / (M + 3). Two stages per rank: 3 / (2 x 8 + 3). ZB-V: idle 3 F of F = I = W."""
    cures = {cure.change: cure for cure in judged(pipeline(), trained(pipeline(), bubble=0.3)).remedies}
    more = cures[Change.MICROBATCHES]
    assert (more.settings, more.bubble_ratio) == ({"parallel.microbatches": 32}, pytest.approx(3 / 35))
    interleaved = cures[Change.INTERLEAVING]
    assert interleaved.settings == {"parallel.schedule": "interleaved", "parallel.virtual": 2}
    assert interleaved.bubble_ratio == pytest.approx(
        bubble_ratio("interleaved", Shape(ranks=4, microbatches=8, chunks=2))
    )
    zero = cures[Change.ZERO_BUBBLE]
    assert zero.settings == {"parallel.schedule": "zb-1p", "parallel.virtual": 1}
    assert zero.bubble_ratio == pytest.approx(bubble_ratio("zb-1p", Shape(ranks=4, microbatches=8)))
    assert Change.REBALANCING not in cures
    savings = [cure.saving_ratio for cure in cures.values()]
    assert savings == sorted(savings, reverse=True)


def test_savings_are_of_the_same_work() -> None:
    """From M + 3 = 11 slots of 1 / 8 to 35 slots of 1 / 32 of the work."""
    (more,) = (cure for cure in judged(pipeline(), trained(pipeline(), bubble=0.3)).remedies if "microb" in cure.change)
    assert more.saving_ratio == pytest.approx(1 - (35 / 32) / (11 / 8))


def test_a_batch_that_cannot_be_cut_more_grows() -> None:
    """3 / (M + 3) is at most 15 % from 17 on: 24 is the first multiple of 8."""
    configured = pipeline(sequences=8, batch=16)
    (more,) = (
        c for c in judged(configured, trained(configured, bubble=0.3)).remedies if c.change is Change.MICROBATCHES
    )
    assert more.settings == {"parallel.microbatches": 24, "train.batch": 48}
    assert more.bubble_ratio == pytest.approx(3 / 27)
    assert more.saving_ratio == pytest.approx(1 - (27 / 24) / (11 / 8))


def test_ddp_gets_no_schedule_that_splits_backward() -> None:
    configured = pipeline(ddp=True)
    changes = {cure.change for cure in judged(configured, trained(configured, bubble=0.3)).remedies}
    assert changes == {Change.MICROBATCHES, Change.INTERLEAVING}


def test_too_few_layers_are_not_interleaved() -> None:
    configured = pipeline(layers=4)
    changes = {cure.change for cure in judged(configured, trained(configured, bubble=0.3)).remedies}
    assert changes == {Change.MICROBATCHES, Change.ZERO_BUBBLE}


@pytest.mark.parametrize("stage", range(4))
def test_a_long_stage_is_named(stage: int) -> None:
    (finding,) = judged(pipeline(), trained(pipeline(), {stage: 2.0})).findings
    assert (finding.kind, finding.stage, finding.ranks) == (Kind.UNBALANCED_STAGE, stage, (stage,))
    assert finding.factor == pytest.approx(2.0)


def test_a_stage_that_is_long_in_one_half_is_not_named() -> None:
    assert judged(pipeline(), trained(pipeline(), {1: 2.0}, second={})).findings == ()
    assert judged(pipeline(), trained(pipeline(), {1: 2.0}, second={2: 2.0})).findings == ()


def test_a_slightly_longer_stage_is_not_named() -> None:
    assert judged(pipeline(), trained(pipeline(), {1: 1.25})).findings == ()


def test_layers_move_away_from_a_last_stage_with_a_long_loss() -> None:
    """The last stage's two layers take three times their time: as if it had four layers more."""
    configured = pipeline(layers=16)
    training = trained(configured, {3: 2.0})
    (finding,) = judged(configured, training).findings
    assert "output and loss" in finding.advice
    costs = stage_costs(configured, {stage.stage: stage.seconds[Round.FIRST] for stage in training.stages})
    assert (costs.layer_seconds, costs.last_seconds) == (pytest.approx(LAYER_SECONDS), pytest.approx(4 * LAYER_SECONDS))
    assert [len(layers) for layers in shortest_split(configured, costs)] == [5, 5, 5, 1]
    (cure,) = (c for c in remedies(configured, costs, target_ratio=0.15) if c.change is Change.REBALANCING)
    assert cure.settings == {"layers of each stage": "5, 5, 5, 1"}
    assert cure.bubble_ratio == pytest.approx(3 / 11)
    assert cure.saving_ratio == pytest.approx(1 - 5 * 11 / (11 * 8 - 3 * 4), abs=0.05)


def test_no_remedy_makes_all_stages_shorter_than_the_layers_that_are_recomputed() -> None:
    """Interleaving gives each of 8 stages one layer of 8; two are to be recomputed."""
    configured = pipeline(recompute_layers=2)
    changes = {cure.change for cure in judged(configured, trained(configured, bubble=0.3)).remedies}
    assert Change.INTERLEAVING not in changes
    assert Change.MICROBATCHES in changes


def test_a_slow_rank_between_the_ends_gets_fewer_layers() -> None:
    configured = pipeline(layers=16)
    costs = stage_costs(configured, {s.stage: s.seconds[Round.FIRST] for s in trained(configured, {1: 2.0}).stages})
    counts = [len(layers) for layers in shortest_split(configured, costs)]
    assert counts[1] == min(counts)
    assert max(counts[1] * 2, *counts) < 2 * 4


@pytest.mark.parametrize(("steps", "named"), [(3, False), (4, True)])
def test_a_stage_is_named_from_two_steps_in_each_half_on(steps: int, named: bool) -> None:
    findings = judged(pipeline(), trained(pipeline(), {2: 2.0}, steps=steps)).findings
    assert [finding.kind for finding in findings] == [Kind.UNBALANCED_STAGE] * named


def test_a_single_step_is_in_both_halves() -> None:
    assert [list(half) for half in halves(np.array([3])).values()] == [[3], [3]]


@pytest.mark.parametrize("number", [0, *range(2, 8)])
def test_the_halves_of_the_steps_have_no_common_step(number: int) -> None:
    first, second = halves(np.arange(3, 3 + number)).values()
    assert len(first) == len(second) == number // 2
    assert not number // 2 or max(first) < min(second)


def test_two_stages_are_compared_with_each_other() -> None:
    configured = pipeline(ranks=2)
    (finding,) = judged(configured, trained(configured, {1: 2.0})).findings
    assert (finding.kind, finding.stage) == (Kind.UNBALANCED_STAGE, 1)


def test_an_unmeasured_stage_gives_no_judgement() -> None:
    training = trained(pipeline())
    short = Training(steps=1, step_seconds=1.0, stages=training.stages[:3])
    assert judge_pipeline(short, pipeline(), alarm_ratio=0.15) is None
