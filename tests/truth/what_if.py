"""python -m tests.truth what-if: predictions from one real training, beside what the changed training really takes.

Each training is run as it is, and asked what a step would take with something changed; then it is run with that really
changed. A prediction may be 3 % of a step off. Beside it stands what the machine's own noise was (`weighing.py`), for
pipelines the share of its late ticks (`lateness.py`). Halving a link halves what was put into it, and not what gloo
itself takes, as a prediction does: on a busy machine that is some ms a collective.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.distributed.pool import Pool
from tests.truth.cases import Case
from tests.truth.lateness import DISTURBED
from tests.truth.measuring import measure
from tests.truth.rows import Row
from tests.truth.weighing import weigh
from tests.truth.workloads import MS, WORKLOADS, Workload
from traincope.analysis import Analysis, parse_changes, what_if
from traincope.plan.orders import Shape

WITHIN = 0.03
"""Of the step that is asked about."""
STEPS = 6
NAMED = {workload.name: workload for workload in WORKLOADS}
FULL = Shape(ranks=2, microbatches=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a training, and that training with it really so."""

    training: Workload | Case
    expression: str
    really: Workload | Case

    @property
    def case(self) -> str:
        """As a table names it."""
        if isinstance(self.training, Workload):
            return self.training.name
        link, slow = " slow link" * (self.training.link > 0), " slow stage" * (self.training.slow_stage is not None)
        return f"{self.training.schedule}:{link}{slow}"


def question(training: Workload | Case, expression: str, **really: Any) -> Question:
    return Question(training=training, expression=expression, really=replace(training, **really))


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


class Found(NamedTuple):
    """A training that was run."""

    analysis: Analysis
    noise: float
    disturbed: bool

    @property
    def step_ns(self) -> float:
        """Of the job, in the median."""
        assert self.analysis.critical_path is not None
        return self.analysis.critical_path.median_step.wall_ns


def run(pool: Pool, training: Workload | Case, directory: Path, *, steps: int = STEPS) -> Found:
    """Recorded and analysed. A pipeline runs as many steps as `sleeping` says."""
    if isinstance(training, Workload):
        weighed = weigh(pool, training, directory, steps=steps)
        return Found(weighed.analysis, weighed.noise, weighed.disturbed)
    measured = measure(pool, training, directory)
    return Found(measured.analysis, measured.late_ratio, measured.late_ratio > DISTURBED)


def error(asked: Found, expression: str, really: Found) -> tuple[float, float]:
    """The predicted step, ns, and by how much of the recorded one it misses what the changed training took."""
    prediction = what_if(asked.analysis, parse_changes(expression, asked.analysis))
    assert prediction.reason is None, prediction.reason
    return prediction.predicted_median_ns, (prediction.predicted_median_ns - really.step_ns) / asked.step_ns


def what_if_rows() -> Iterator[Row]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pools = {ranks: Pool(ranks) for ranks in {one.training.ranks for one in QUESTIONS}}
        for pool in pools.values():
            stack.callback(pool.stop)
        known: dict[str, Found] = {}
        for number, one in enumerate(QUESTIONS):
            pool = pools[one.training.ranks]
            if one.case not in known:
                known[one.case] = run(pool, one.training, directory / f"{number}")
            really = run(pool, one.really, directory / f"{number}-changed")
            if known[one.case].disturbed or really.disturbed:
                print(f"{one.case}: others disturbed it; run it where nothing else runs", file=sys.stderr)
            yield _row(one, known[one.case], really)


def _row(one: Question, asked: Found, really: Found) -> Row:
    predicted_ns, missed = error(asked, one.expression, really)
    return Row(
        part="what-if",
        case=one.case,
        what=one.expression,
        truth=f"{really.step_ns / 1e6:.1f} ms",
        measured=f"{predicted_ns / 1e6:.1f} ms",
        error=f"{missed:+.2%}",
        noise=f"{max(asked.noise, really.noise):.2%}",
        of_step=missed,
        holds=abs(missed) <= WITHIN,
    )
