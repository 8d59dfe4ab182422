"""A real training, what is predicted of it without its late rank, and the training without that lateness."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.distributed.pool import Pool
from tests.truth.what_if import NAMED, WITHIN, Found, error, question, run
from tests.truth.workloads import MS, Workload

LATE = NAMED["ddp: slow link, rank 0 late"]
NORMAL = question(LATE, "rank0.unattributed=0", late_ns=(0,))
REBUILT = 1
"""The step in whose forward DDP sorts its buckets anew: both ranks meet there; after it the path may be on either."""
STEPS = 4
ON_THE_PATH = {(0, "unattributed"): 80 * MS, (0, "forward"): 200 * MS, (0, "backward"): 300 * MS}


def quiet(pool: Pool, training: Workload, directory: Path) -> Found:
    found = run(pool, training, directory, steps=STEPS)
    if found.disturbed:
        pytest.skip(f"others use this machine: its own noise was {found.noise:.1%} of a step")
    return found


def misses(asked: Found, really: Found) -> Iterator[str]:
    """What is further off than it may be."""
    path = asked.analysis.critical_path
    assert path is not None
    path = replace(path, steps=tuple(step for step in path.steps if step.number > REBUILT))
    shares = {key: round(ns / len(path.steps) / MS) for key, ns in path.shares().items()}
    for key, ns in ON_THE_PATH.items():
        if abs(shares[key] * MS - ns) > WITHIN * asked.step_ns:
            yield f"{key} on the path is {shares[key]} ms of {shares}"
    _, missed = error(asked, NORMAL.expression, really)
    if abs(missed) > WITHIN:
        yield f"the prediction is {missed:.1%} of a step off"


@pytest.mark.timed
def test_the_path_is_the_late_ranks_and_without_its_lateness_a_step_takes_what_is_predicted(
    two_ranks: Pool, tmp_path: Path
) -> None:
    assert isinstance(NORMAL.really, Workload)
    asked = quiet(two_ranks, LATE, tmp_path / "asked")
    assert list(misses(asked, quiet(two_ranks, NORMAL.really, tmp_path / "really"))) == []
