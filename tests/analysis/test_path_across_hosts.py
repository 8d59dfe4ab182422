"""Path and predictions of a recorded pipeline do not change if half of its ranks are put on another host.

Only their own collectives and messages align the two clocks.
"""

from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.timeline.hosts import moved
from traincope.analysis import Analysis, CriticalPath, analyze, parse_changes, what_if
from traincope.store import read_run
from traincope.timeline import build_timeline

DEMO = Path(__file__).parents[2] / "sample_runs" / "demo"
ELSEWHERE = ((2, 3), (1, 3))
"""Ranks on the second host: one whole stage, or half of each stage."""


@cache
def recorded(elsewhere: tuple[int, ...] = ()) -> Analysis:
    run = moved(read_run(DEMO), elsewhere, ahead_ns=7_000_000_000, drift=20e-6, wall_ahead_ns=3_000_000)
    return analyze(build_timeline(run))


def shares(analysis: Analysis) -> dict[str, float]:
    """Return term -> share of the path."""
    path = analysis.critical_path
    assert isinstance(path, CriticalPath)
    assert path.reason is None
    sums: dict[str, float] = defaultdict(float)
    for (_, term), ns in path.shares().items():
        sums[term] += ns / path.wall_ns
    return sums


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_the_path_equals_that_of_one_host_and_has_a_clock_error(elsewhere: tuple[int, ...]) -> None:
    same_host, two_hosts = recorded(), recorded(elsewhere)
    assert same_host.critical_path is not None
    assert two_hosts.critical_path is not None
    assert same_host.critical_path.clock_error_ns == 0
    assert 0 < (two_hosts.critical_path.clock_error_ns or 0) < 1_000_000
    assert two_hosts.critical_path.wall_ns == pytest.approx(same_host.critical_path.wall_ns, rel=1e-4)
    known, analysis = shares(same_host), shares(two_hosts)
    assert analysis == pytest.approx({term: known[term] for term in analysis}, abs=0.005)
    assert analysis.keys() == known.keys()


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_predictions_equal_those_of_one_host(elsewhere: tuple[int, ...]) -> None:
    for expression in ("forward=0.5", "fsdp.transfer=0", "pp.transfer=10"):
        same_host, two_hosts = (
            what_if(analysis, parse_changes(expression, analysis)) for analysis in (recorded(), recorded(elsewhere))
        )
        assert two_hosts.ratio == pytest.approx(same_host.ratio, abs=0.005)
        assert abs(two_hosts.replay_error_ratio) < 0.002
