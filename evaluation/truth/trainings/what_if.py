"""python -m evaluation.truth what-if: predictions from one real training, compared with the changed training.

Each training runs unchanged and predicts its step after a change; then it runs with that change. A prediction may be
off by 3 % of a step. The table also shows the machine's noise (`weighing.py`), for pipelines the share of late ticks
(`pipelines/lateness.py`). Halving a link halves the added time, but not gloo's own time, while the prediction halves
both: on a busy machine the difference is some ms per collective.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.truth.pipelines.cases import Case
from evaluation.truth.pipelines.lateness import DISTURBED
from evaluation.truth.pipelines.measuring import measure
from evaluation.truth.rows import Row
from evaluation.truth.trainings.weighing import ATTEMPTS, measure_workload
from evaluation.truth.trainings.workloads import MS, WORKLOADS, Workload
from tests.distributed.ranks.pool import Pool
from traincope.analysis import Analysis, parse_changes, what_if
from traincope.plan.pipeline.orders import Shape

WITHIN = 0.03
"""Tolerance, as a share of the predicted step."""
STEPS = 6
NAMED = {workload.name: workload for workload in WORKLOADS}
FULL = Shape(ranks=2, microbatches=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a training, and that training with the change."""

    training: Workload | Case
    expression: str
    actual: Workload | Case

    @property
    def case(self) -> str:
        """Name in the table."""
        if isinstance(self.training, Workload):
            return self.training.name
        link, slow = " slow link" * (self.training.link > 0), " slow stage" * (self.training.slow_stage is not None)
        return f"{self.training.schedule}:{link}{slow}"


def question(training: Workload | Case, expression: str, **actual: Any) -> Question:
    return Question(training=training, expression=expression, actual=replace(training, **actual))


QUESTIONS = (
    question(NAMED["ddp: slow link, rank 0 late"], "rank0.unattributed=0", late_ns=(0,)),
    question(NAMED["ddp: slow link, rank 0 late"], "dp.wait=0", late_ns=(0,)),
    question(NAMED["ddp: slow link, rank 0 late"], "dp.transfer=0.5", links_ns={("dp", "all_reduce"): 30 * MS}),
    question(NAMED["ddp: slow link"], "backward=0.5", backward_ns=(75 * MS,)),
    question(
        NAMED["fsdp: slow link"],
        "fsdp.transfer=0.5",
        links_ns={("fsdp", "all_gather"): 10 * MS, ("fsdp", "reduce_scatter"): 20 * MS},
    ),
    question(NAMED["tp: slow link, rank 0 slow"], "rank0.forward=0.714", forward_ns=(100 * MS,)),
    question(NAMED["dp x tp: slow links, rank 3 late"], "rank3.unattributed=0", late_ns=(0,)),
    question(NAMED["ddp: slow loaders"], "data_wait=0", data_ns=(0,)),
    question(Case(schedule="1f1b", shape=FULL, link=0.5), "pp.transfer=0.2", link=0.1),
    question(Case(schedule="zb-1p", shape=FULL, link=0.5), "pp.transfer=0.5", link=0.25),
    question(Case(schedule="1f1b", shape=FULL, slow_stage=1), "rank1.compute=0.8", slow_stage=None),
)


class Effect(NamedTuple):
    """Result of one training."""

    analysis: Analysis
    noise: float
    disturbed: bool

    @property
    def step_ns(self) -> float:
        """The job's median step time."""
        assert self.analysis.critical_path is not None
        return self.analysis.critical_path.median_step.wall_ns


def run(pool: Pool, training: Workload | Case, directory: Path, *, steps: int = STEPS, times: int = ATTEMPTS) -> Effect:
    """Run, record and analyse, so often on a noisy machine. A pipeline runs as many steps as `sleeping` defines."""
    if isinstance(training, Workload):
        weighed = measure_workload(pool, training, directory, steps=steps, times=times)
        return Effect(weighed.analysis, weighed.noise, weighed.disturbed)
    measured = measure(pool, training, directory)
    return Effect(measured.analysis, measured.late_ratio, measured.late_ratio > DISTURBED)


def error(predicted: Effect, expression: str, actual: Effect) -> tuple[float, float]:
    """The predicted step in ns, and its error as a share of the recorded step."""
    prediction = what_if(predicted.analysis, parse_changes(expression, predicted.analysis))
    assert prediction.reason is None, prediction.reason
    return prediction.predicted_median_ns, (prediction.predicted_median_ns - actual.step_ns) / predicted.step_ns


def what_if_rows() -> Iterator[Row]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pools = {ranks: Pool(ranks) for ranks in {case.training.ranks for case in QUESTIONS}}
        for pool in pools.values():
            stack.callback(pool.stop)
        known: dict[str, Effect] = {}
        for number, case in enumerate(QUESTIONS):
            pool = pools[case.training.ranks]
            if case.case not in known:
                known[case.case] = run(pool, case.training, directory / f"{number}")
            actual = run(pool, case.actual, directory / f"{number}-changed")
            if known[case.case].disturbed or actual.disturbed:
                print(f"{case.case}: disturbed by other processes; run it on an idle machine", file=sys.stderr)
            yield _row(case, known[case.case], actual)


def _row(case: Question, predicted: Effect, actual: Effect) -> Row:
    predicted_ns, missed = error(predicted, case.expression, actual)
    return Row(
        part="what-if",
        case=case.case,
        quantity=case.expression,
        truth=f"{actual.step_ns / 1e6:.1f} ms",
        measured=f"{predicted_ns / 1e6:.1f} ms",
        error=f"{missed:+.2%}",
        noise=f"{max(predicted.noise, actual.noise):.2%}",
        of_step=missed,
        holds=abs(missed) <= WITHIN,
    )
