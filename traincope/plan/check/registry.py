"""All rules, and the check of a plan."""

from collections.abc import Iterator, Sequence

from traincope.plan.check.checkpoints import saved_at_all, saved_in_background, saved_in_time
from traincope.plan.check.data import loader_with_workers
from traincope.plan.check.memory import fits, recompute_only_for_memory, wide_optimizer_state
from traincope.plan.check.parallelism import all_rails, enough_microbatches, tensor_parallel_within_domain
from traincope.plan.check.problem import Problem, Rule, Severity, Site
from traincope.plan.check.shapes import even_heads, even_vocabulary
from traincope.plan.check.stability import balanced_experts, clipped_gradients, watched_ranks
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.model.flops import Recompute

SHAPES = "Anthony et al. 2024, arXiv:2401.14489: multiples of 64 numbers of 16 bit"
RULES: tuple[Rule, ...] = (
    Rule(
        name="tp-beyond-domain",
        severity=Severity.ERROR,
        source="Narayanan et al. 2021, arXiv:2104.04473, takeaway 1",
        needs=("tp",),
        find=tensor_parallel_within_domain,
    ),
    Rule(
        name="does-not-fit",
        severity=Severity.ERROR,
        source="formulas of `traincope plan memory`",
        needs=("shape", "layout"),
        find=fits,
    ),
    Rule(
        name="optimizer-state-fp16",
        severity=Severity.WARNING,
        source="Micikevicius et al. 2018, arXiv:1710.03740, section 3.1; fp16's smallest number is 2^-24",
        needs=("optimizer_states",),
        find=wide_optimizer_state,
    ),
    Rule(
        name="few-microbatches",
        severity=Severity.WARNING,
        source="Huang et al. 2019, arXiv:1811.06965, section 2.3: M >= 4 P",
        needs=("layout",),
        find=enough_microbatches,
    ),
    Rule(
        name="needless-recomputation",
        severity=Severity.WARNING,
        source="Korthikanti et al. 2022, arXiv:2205.05198, section 5",
        needs=("recompute", "shape", "layout"),
        find=recompute_only_for_memory,
    ),
    Rule(
        name="one-rail",
        severity=Severity.WARNING,
        source="DGX H100 data sheet: one 400 Gbit/s link per GPU",
        find=all_rails,
    ),
    Rule(
        name="no-clipping",
        severity=Severity.WARNING,
        source="Pascanu et al. 2013, arXiv:1211.5063, section 3.2",
        needs=("clips",),
        find=clipped_gradients,
    ),
    Rule(
        name="capacity-without-balance",
        severity=Severity.WARNING,
        source="Lepikhin et al. 2020, arXiv:2006.16668, section 2.2",
        needs=("experts",),
        find=balanced_experts,
    ),
    Rule(
        name="no-checkpoints",
        severity=Severity.WARNING,
        source="Llama 3, arXiv:2407.21783, section 3.3.4: a failure every 50,700 GPU-hours",
        needs=("saves",),
        find=saved_at_all,
    ),
    Rule(
        name="blocking-checkpoints",
        severity=Severity.WARNING,
        source="Daly 2006, FGCS 22(3): each save costs its stop",
        needs=("saves",),
        find=saved_in_background,
    ),
    Rule(
        name="checkpoint-cadence",
        severity=Severity.WARNING,
        source="Daly 2006, FGCS 22(3), p. 303",
        needs=("saves", "shape", "layout"),
        find=saved_in_time,
    ),
    Rule(
        name="loader-without-workers",
        severity=Severity.WARNING,
        source="torch.utils.data, num_workers: 0 loads in the main process",
        needs=("workers",),
        find=loader_with_workers,
    ),
    Rule(name="odd-vocabulary", severity=Severity.WARNING, source=SHAPES, needs=("vocabulary",), find=even_vocabulary),
    Rule(name="odd-heads", severity=Severity.WARNING, source=SHAPES, needs=("head_dim",), find=even_heads),
    Rule(
        name="no-straggler-watch",
        severity=Severity.INFO,
        source="BLOOM's chronicles, 28 April 2022: one slow GPU cost 5 % until a bisection found its node",
        needs=("watches_stragglers",),
        find=watched_ranks,
    ),
)
"""Worst first. A new rule is a function in the file of its family, and one entry here."""


PREDICTED = frozenset(("shape", "layout"))
"""Fields that rules need if they stand on predicted memory or speed."""
GIVEN_BY_MODEL = frozenset(("shape", "layout", "vocabulary", "head_dim"))
ASK_MODEL = "the plan does not give the model's shapes; give --model and --seq"
LEFT_OPEN = {
    "clips": "gradient_clipping is auto: write the number of the training",
    "workers": "the training's code decides the loader's workers",
    "recompute": "the training's code decides what is recomputed",
    "saves": "the training's code decides when it saves",
    "experts": "the training's code decides the experts",
}
"""Missing field of a plan -> why it is missing, and the remedy if there is one."""


def check(plan: TrainingPlan, site: Site) -> Iterator[tuple[Rule, Problem]]:
    """Yield all places where the plan breaks a rule, worst first."""
    for rule in RULES:
        for problem in rule.find(plan, site):
            yield rule, problem


def unjudged(plan: TrainingPlan) -> Iterator[tuple[Rule, str]]:
    """Yield the rules for which the plan does not say enough, with what is missing and how to give it."""
    for rule in RULES:
        if rule.find is recompute_only_for_memory and plan.recompute is Recompute.NONE:
            continue
        lacking = [name for name in rule.needs if getattr(plan, name) is None]
        if lacking:
            yield rule, _why_open(plan, lacking)
        elif plan.unmodelled and PREDICTED.issubset(rule.needs):
            yield rule, f"no formula here has {' and '.join(plan.unmodelled)}; record some steps with `traincope run`"


def _why_open(plan: TrainingPlan, lacking: Sequence[str]) -> str:
    if not GIVEN_BY_MODEL.intersection(lacking):
        return LEFT_OPEN.get(lacking[0], "the plan does not say")
    is_known = plan.open_because and (plan.layout is not None or "layout" in lacking)
    return plan.open_because if is_known else ASK_MODEL
