"""Some runs of `python -m evaluation.truth.machines.clocks`: estimated clocks of hosts are within their bounds."""

import pytest

from evaluation.truth.machines.clocks import outcomes
from evaluation.truth.machines.hosts import make_trial
from tests.seeds import seeds
from traincope.timeline import build_timeline


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", seeds(24))
def test_the_true_clock_of_every_host_is_within_its_bound(seed: int) -> None:
    for outcome in outcomes(make_trial(seed)):
        assert outcome.bound_ns is not None
        assert abs(outcome.error_ns) <= outcome.bound_ns


@pytest.mark.parametrize("seed", [1, 4], ids=["messages", "collectives"])
def test_the_bound_shrinks_with_evidence_and_is_unknown_without(seed: int) -> None:
    bounds = [
        build_timeline(make_trial(seed, with_evidence=steps).run).clocks[-1].bound_ns for steps in (0, 1, 9, None)
    ]
    assert bounds[0] is None
    known = [bound for bound in bounds if bound is not None]
    assert len(known) == 3
    assert known == sorted(known, reverse=True)
    assert known[-1] < known[0] / 10
