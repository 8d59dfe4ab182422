"""A real training, its prediction without the late rank, and the training without that lateness."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.truth.trainings.on_paper import recorded
from evaluation.truth.trainings.predicted import Change, row
from evaluation.truth.trainings.what_if import NAMED, WITHIN, Effect, error, question, run
from evaluation.truth.trainings.workloads import MS, Workload
from tests.distributed.ranks.pool import Pool
from traincope.analysis import analyze

LATE = NAMED["ddp: slow link, rank 0 late"]
NORMAL = question(LATE, "rank0.unattributed=0", late_ns=(0,))
REBUILT = 1
"""The step in whose forward DDP sorts its buckets again: both ranks synchronise there; afterwards the path may be
on either.
"""
STEPS = 4
ON_THE_PATH = {(0, "unattributed"): 80 * MS, (0, "forward"): 200 * MS, (0, "backward"): 300 * MS}


def quiet(pool: Pool, training: Workload, directory: Path) -> Effect:
    result = run(pool, training, directory, steps=STEPS)
    if result.disturbed:
        pytest.skip(f"disturbed machine: its noise was {result.noise:.1%} of a step")
    return result


def misses(asked: Effect, really: Effect) -> Iterator[str]:
    """Predictions that exceed their tolerance."""
    path = asked.analysis.critical_path
    assert path is not None
    path = replace(path, steps=tuple(step for step in path.steps if step.number > REBUILT))
    shares = {key: round(ns / len(path.steps) / MS) for key, ns in path.shares().items()}
    for key, ns in ON_THE_PATH.items():
        if abs(shares[key] * MS - ns) > WITHIN * asked.step_ns:
            yield f"{key} on the path is {shares[key]} ms of {shares}"
    _, missed = error(asked, NORMAL.expression, really)
    if abs(missed) > WITHIN:
        yield f"the error of the prediction is {missed:.1%} of a step"


@pytest.mark.timing
def test_without_the_late_rank_a_step_takes_the_predicted_time(two_ranks: Pool, tmp_path: Path) -> None:
    assert isinstance(NORMAL.actual, Workload)
    asked = quiet(two_ranks, LATE, tmp_path / "asked")
    assert list(misses(asked, quiet(two_ranks, NORMAL.actual, tmp_path / "really"))) == []


def test_a_gain_that_is_not_predicted_is_a_missed_row() -> None:
    """Sleeping ranks without messages show no law of their links."""
    training = NAMED["ddp: even"]
    known = Effect(analyze(recorded(training, steps=4)), 0.0, disturbed=False)
    change = Change(title="other dp", before=training, expression="dp=4", after=training)
    refused = row(change, known, known)
    assert (refused.measured, refused.holds) == ("refused", False)
