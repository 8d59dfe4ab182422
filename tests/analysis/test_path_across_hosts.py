"""A recorded pipeline, as if half of its ranks had been on another host: path and predictions stay what they are.

The clocks of the two are tied by their own collectives and messages alone.
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
"""A stage of its own host; half of either stage."""


@cache
def recorded(elsewhere: tuple[int, ...] = ()) -> Analysis:
    run = moved(read_run(DEMO), elsewhere, ahead_ns=7_000_000_000, drift=20e-6, wall_ahead_ns=3_000_000)
    return analyze(build_timeline(run))


def shares(found: Analysis) -> dict[str, float]:
    """Term -> its share of the path."""
    path = found.critical_path
    assert isinstance(path, CriticalPath)
    assert path.reason is None
    sums: dict[str, float] = defaultdict(float)
    for (_, term), ns in path.shares().items():
        sums[term] += ns / path.wall_ns
    return sums


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_the_path_is_that_of_one_host_and_tells_how_far_its_clocks_may_be_apart(elsewhere: tuple[int, ...]) -> None:
    one, two = recorded(), recorded(elsewhere)
    assert one.critical_path is not None
    assert two.critical_path is not None
    assert one.critical_path.clock_error_ns == 0
    assert 0 < (two.critical_path.clock_error_ns or 0) < 1_000_000
    assert two.critical_path.wall_ns == pytest.approx(one.critical_path.wall_ns, rel=1e-4)
    known, found = shares(one), shares(two)
    assert found == pytest.approx({term: known[term] for term in found}, abs=0.005)
    assert found.keys() == known.keys()


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_what_is_predicted_is_what_is_predicted_of_one_host(elsewhere: tuple[int, ...]) -> None:
    for expression in ("forward=0.5", "fsdp.transfer=0", "pp.transfer=10"):
        one, two = (what_if(found, parse_changes(expression, found)) for found in (recorded(), recorded(elsewhere)))
        assert two.ratio == pytest.approx(one.ratio, abs=0.005)
        assert abs(two.replay_error_ratio) < 0.002
