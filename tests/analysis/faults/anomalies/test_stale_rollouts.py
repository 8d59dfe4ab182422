"""Rollouts whose weights are no longer renewed, and those that are old by plan."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.timeline.build import Row, rank, step, timeline
from traincope.analysis import analyze
from traincope.analysis.faults.anomalies.stale_rollouts import stale_rollouts
from traincope.events import Kind
from traincope.timeline import Timeline


def logged(name: str, at_ns: int, value: float, number: int) -> Row:
    bits = int(np.float64(value).view(np.int64))
    return Row(kind=Kind.SCALAR, start_ns=at_ns, end_ns=at_ns, name=name, value=bits, step=number)


def run(versions: Sequence[int]) -> Timeline:
    """Step n trains version n, on rollouts of the given versions."""
    rows = []
    for number, version in enumerate(versions):
        at = 100 * number
        rows += [
            step(number, at, at + 100),
            logged("weights_version", at + 90, number, number),
            logged("rollout_version", at + 91, version, number),
        ]
    return timeline(rank(0, *rows))


@pytest.mark.parametrize(
    ("versions", "version", "lag", "held", "renewed"),
    [([0] * 30, 0, 29, 30, False), ([*range(10), *[9] * 30], 9, 30, 31, True)],
)
def test_a_version_that_stays_is_named_with_its_lag(
    versions: list[int], version: int, lag: int, held: int, renewed: bool
) -> None:
    found = stale_rollouts(run(versions))
    assert found is not None
    assert (found.version, found.lag, found.held_steps, found.renewed) == (version, lag, held, renewed)
    (first, *_) = analyze(run(versions)).verdict
    assert (first.kind, first.confidence) == ("stale_rollouts", "high" if renewed else "medium")
    assert f"weights of version {version}" in first.evidence


@pytest.mark.parametrize(
    "versions",
    [
        [max(number - 4, 0) for number in range(40)],  # four versions old by plan
        [number - number % 16 for number in range(48)],  # renewed every 16 steps
        [0] * 15,  # too few steps
    ],
)
def test_old_versions_by_plan_are_no_finding(versions: list[int]) -> None:
    assert stale_rollouts(run(versions)) is None
