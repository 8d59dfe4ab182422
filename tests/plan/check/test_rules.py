"""Each rule on a plan that breaks it, and the plan that keeps all of them."""

from dataclasses import replace

import pytest

from traincope.plan.check.predicting import predicted
from traincope.plan.check.problem import Site
from traincope.plan.check.registry import RULES, check
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.layout import Layout
from traincope.plan.model.flops import Recompute
from traincope.plan.model.transformer import Transformer
from traincope.plan.pipeline.bubble import bubble_ratio
from traincope.plan.pipeline.orders import Shape
from traincope.plan.search.clusters import Cluster, find_accelerator
from traincope.plan.search.job import Job

SMALL = Transformer(layers=8, hidden=2048, heads=16, vocabulary=32_768, sequence=2048, gated_mlp=True, untied=True)
LAYOUT = Layout(dp=2, tp=2, pp=4, zero=1, microbatches=16)
KEPT = TrainingPlan(
    framework="traincope",
    shape=SMALL,
    layout=LAYOUT,
    tp=2,
    pp=4,
    vocabulary=32_768,
    head_dim=128,
    recompute=Recompute.NONE,
    clips=True,
    optimizer_states="fp32",
    checkpoint_steps=200_000,
    saves=True,
    blocking_saves=False,
    workers=2,
    experts=False,
    watches_stragglers=True,
)
CLUSTER = Cluster(accelerator=find_accelerator("h100"), gpus=16)
JOB = Job(tokens=1e12, price_per_gpu_hour=2)


def broken(plan: TrainingPlan, *, cluster: Cluster = CLUSTER) -> dict[str, float | None]:
    """Names of the broken rules, with the share of the time that each costs."""
    site = Site(cluster=cluster, job=JOB, prediction=predicted(plan, machine=cluster.machine()))
    return {rule.name: problem.lost_ratio for rule, problem in check(plan, site)}


def test_a_plan_that_keeps_all_rules_breaks_none() -> None:
    assert broken(KEPT) == {}


BREAKING = {
    "tp-beyond-domain": replace(KEPT, tp=16, layout=Layout(tp=16), checkpoint_steps=None),
    "does-not-fit": replace(KEPT, shape=replace(SMALL, hidden=2048 * 16), checkpoint_steps=None),
    "optimizer-state-fp16": replace(KEPT, optimizer_states="fp16"),
    "few-microbatches": replace(KEPT, layout=replace(LAYOUT, microbatches=4)),
    "needless-recomputation": replace(KEPT, recompute=Recompute.FULL),
    "no-clipping": replace(KEPT, clips=False),
    "capacity-without-balance": replace(KEPT, experts=True, capacity_factor=1.25, balance=0.0),
    "no-checkpoints": replace(KEPT, saves=False, checkpoint_steps=None, blocking_saves=None),
    "blocking-checkpoints": replace(KEPT, blocking_saves=True),
    "checkpoint-cadence": replace(KEPT, checkpoint_steps=20_000_000),
    "loader-without-workers": replace(KEPT, workers=0),
    "odd-vocabulary": replace(KEPT, vocabulary=50_257),
    "odd-heads": replace(KEPT, head_dim=80),
    "no-straggler-watch": replace(KEPT, watches_stragglers=False),
}


@pytest.mark.parametrize("name", BREAKING)
def test_one_change_breaks_one_rule(name: str) -> None:
    assert list(broken(BREAKING[name])) == [name]


def test_one_rail_for_all_traffic() -> None:
    lost = broken(KEPT, cluster=replace(CLUSTER, rails=1))
    assert list(lost) == ["one-rail"]
    assert lost["one-rail"] is not None
    assert lost["one-rail"] > 0


def test_every_rule_is_broken_once() -> None:
    assert {rule.name for rule in RULES} == {*BREAKING, "one-rail"}


def test_a_plan_that_does_not_say_breaks_nothing() -> None:
    assert broken(TrainingPlan(framework="unknown")) == {}


def test_the_cost_of_few_microbatches_is_the_bubble() -> None:
    """All else of a microbatch stays: 1 - (1 - b of 4) / (1 - b of 16), up to dp, the ends and the optimizer."""
    four, sixteen = (bubble_ratio("1f1b", Shape(ranks=4, microbatches=each)) for each in (4, 16))
    assert four is not None
    assert sixteen is not None
    lost = broken(BREAKING["few-microbatches"])["few-microbatches"]
    assert lost == pytest.approx(1 - (1 - four) / (1 - sixteen), abs=0.05)


def test_the_cost_of_recomputation_is_its_flops() -> None:
    """Without communication and other operations a full recomputation takes a quarter of the products' time."""
    plan = replace(KEPT, layout=Layout(dp=16, zero=1, microbatches=4), recompute=Recompute.FULL)
    assert broken(plan)["needless-recomputation"] == pytest.approx(0.22, abs=0.04)


def test_a_slow_save_costs_its_stop() -> None:
    prediction = predicted(KEPT, machine=CLUSTER.machine())
    assert prediction is not None
    interval = 200_000 * prediction.expected_seconds
    assert broken(BREAKING["blocking-checkpoints"])["blocking-checkpoints"] == pytest.approx(40 / (interval + 40))


def test_a_save_in_the_background_has_no_stop_to_balance() -> None:
    """A shorter interval than Daly's loses less work. Its cost is a stop, which only a blocking save has."""
    assert broken(replace(KEPT, checkpoint_steps=500)) == {}
    assert broken(BREAKING["checkpoint-cadence"]) == {"checkpoint-cadence": None}
    stopped = broken(replace(KEPT, checkpoint_steps=500, blocking_saves=True))["checkpoint-cadence"]
    assert stopped is not None
    assert stopped > 0.01


def test_the_cost_of_a_wide_tp_is_unknown() -> None:
    """The fix is another layout, which is not predicted."""
    assert broken(BREAKING["tp-beyond-domain"]) == {"tp-beyond-domain": None}


def test_a_plan_that_may_recompute_everything_fits_if_it_then_fits() -> None:
    """81 GiB with all activations and 27 without, of 72; twice the batch needs 53 without, four times more than 72."""
    for micro_batch, broken_by in ((128, {Recompute.NONE}), (512, {Recompute.NONE, Recompute.FULL, None})):
        for recompute in (Recompute.NONE, Recompute.FULL, None):
            plan = replace(KEPT, layout=replace(LAYOUT, micro_batch=micro_batch), recompute=recompute)
            assert ("does-not-fit" in broken(plan)) == (recompute in broken_by)
