"""All rules, and the check of a plan."""

from collections.abc import Iterator

from traincope.plan.check.checkpoints import saved_at_all, saved_in_background, saved_in_time
from traincope.plan.check.data import loader_with_workers
from traincope.plan.check.memory import fits, recompute_only_for_memory, wide_optimizer_state
from traincope.plan.check.parallelism import all_rails, enough_microbatches, tensor_parallel_within_domain
from traincope.plan.check.problem import Problem, Rule, Severity, Site
from traincope.plan.check.shapes import even_heads, even_vocabulary
from traincope.plan.check.stability import balanced_experts, clipped_gradients, watched_ranks
from traincope.plan.check.training_plan import TrainingPlan

SHAPES = "Anthony et al. 2024, arXiv:2401.14489: multiples of 64 numbers of 16 bit"
RULES: tuple[Rule, ...] = (
    Rule(
        name="tp-beyond-domain",
        severity=Severity.ERROR,
        source="Narayanan et al. 2021, arXiv:2104.04473, takeaway 1",
        find=tensor_parallel_within_domain,
    ),
    Rule(
        name="does-not-fit",
        severity=Severity.ERROR,
        source="formulas of `traincope plan memory`",
        find=fits,
    ),
    Rule(
        name="optimizer-state-fp16",
        severity=Severity.WARNING,
        source="Micikevicius et al. 2018, arXiv:1710.03740, section 3.1; fp16's smallest number is 2^-24",
        find=wide_optimizer_state,
    ),
    Rule(
        name="few-microbatches",
        severity=Severity.WARNING,
        source="Huang et al. 2019, arXiv:1811.06965, section 2.3: M >= 4 P",
        find=enough_microbatches,
    ),
    Rule(
        name="needless-recomputation",
        severity=Severity.WARNING,
        source="Korthikanti et al. 2022, arXiv:2205.05198, section 5",
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
        find=clipped_gradients,
    ),
    Rule(
        name="capacity-without-balance",
        severity=Severity.WARNING,
        source="Lepikhin et al. 2020, arXiv:2006.16668, section 2.2",
        find=balanced_experts,
    ),
    Rule(
        name="no-checkpoints",
        severity=Severity.WARNING,
        source="Llama 3, arXiv:2407.21783, section 3.3.4: a failure every 50,700 GPU-hours",
        find=saved_at_all,
    ),
    Rule(
        name="blocking-checkpoints",
        severity=Severity.WARNING,
        source="Daly 2006, FGCS 22(3): each save costs its stop",
        find=saved_in_background,
    ),
    Rule(
        name="checkpoint-cadence",
        severity=Severity.WARNING,
        source="Daly 2006, FGCS 22(3), p. 303",
        find=saved_in_time,
    ),
    Rule(
        name="loader-without-workers",
        severity=Severity.WARNING,
        source="torch.utils.data, num_workers: 0 loads in the main process",
        find=loader_with_workers,
    ),
    Rule(name="odd-vocabulary", severity=Severity.WARNING, source=SHAPES, find=even_vocabulary),
    Rule(name="odd-heads", severity=Severity.WARNING, source=SHAPES, find=even_heads),
    Rule(
        name="no-straggler-watch",
        severity=Severity.INFO,
        source="BLOOM's chronicles, 28 April 2022: one slow GPU cost 5 % until a bisection found its node",
        find=watched_ranks,
    ),
)
"""Worst first. A new rule is a function in the file of its family, and one entry here."""


def check(plan: TrainingPlan, site: Site) -> Iterator[tuple[Rule, Problem]]:
    """Yield all places where the plan breaks a rule, worst first."""
    for rule in RULES:
        for problem in rule.find(plan, site):
            yield rule, problem
