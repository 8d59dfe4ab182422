"""The agent over recorded runs, its numbers against the report's, and against those that are made afterwards."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.live.test_agent import here, options
from tests.live.told import Told
from traincope import metrics
from traincope.analysis import Analysis, analyze
from traincope.live.agent import Agent
from traincope.live.exporting import Exporting
from traincope.metrics import Distribution, Sample
from traincope.record.identity import this_host
from traincope.timeline import open_run
from traincope_exporters.history import LIVE_ONLY, final
from traincope_exporters.telling import term_and_axis

OF_THE_LATEST = (metrics.MFU, metrics.MFU_PAPER, metrics.HFU, metrics.BUBBLE, metrics.BUBBLE_PART)
"""Of a look at a job they are the ratios of all its new steps, of a finished run those of each step."""
UNTIL_ASKED = (metrics.CHECKPOINT_AGE,)
"""Ages: once a job is over, nobody is asked for them any more."""
OF_LEVEL_2 = (metrics.ACTION_TIME, metrics.MODULE_TIME)
"""Below it a running job is spared their series; of a finished run they cost nothing."""
OF_INSTANTS = {metrics.JOB_TIME.name: 0.002, metrics.GOODPUT.name: 0.001}
"""An agent has an instant by the first reading of both clocks, a report by all of them: so far apart they may be."""

Numbers = Mapping[tuple[str, tuple[str, ...]], float | Distribution]


@pytest.mark.parametrize("sample", ["demo", "demo-3d"])
def test_the_numbers_of_a_run_are_those_of_its_report(sample: str, tmp_path: Path) -> None:
    """A sample's ranks are long gone, so that one look sees all."""
    run = here(sample, tmp_path / "run")
    observer = Exporting(job="job", host=this_host().name, environment={"TRAINCOPE_METRICS": "off"})
    Agent(options(run), observers=(observer,)).run()
    found, report = Told(observer.samples()), analyze(open_run(run))
    live, afterwards = _numbers(observer.samples()), _numbers(final(report))
    assert len(live) > 60
    assert live.keys() ^ afterwards.keys() == set()
    assert {
        key: (live[key], afterwards[key]) for key in live if not _are_equal(key[0], live[key], afterwards[key])
    } == {}
    assert found.of(metrics.LEDGER) == pytest.approx(_ledger(report))
    assert found.of(metrics.WALL) == {(str(r.rank),): r.total_wall_ns / 1e9 for r in report.ledger.ranks}
    assert found[metrics.MFU] == pytest.approx(report.utilization.ratios.mfu)
    assert found[metrics.HFU] == pytest.approx(report.utilization.ratios.hfu)
    assert found.of(metrics.COLLECTIVE_BYTES) == {(row.axis, row.operation): row.num_bytes for row in report.comm}
    assert found.of(metrics.CAUSED_WAIT) == {(str(r.rank),): r.caused_wait_ns / 1e9 for r in report.stragglers.ranks}
    assert report.goodput is not None
    assert report.goodput.productive_ns is not None
    assert found[metrics.JOB_TIME, "productive"] == pytest.approx(report.goodput.productive_ns / 1e9)
    for part in ("checkpoint_stall", "evaluation"):
        assert found[metrics.JOB_TIME, part] == pytest.approx(getattr(report.goodput, f"{part}_ns") / 1e9)


def _ledger(report: Analysis) -> dict[tuple[str, ...], float]:
    sums: dict[tuple[str, ...], int] = defaultdict(int)
    for rank in report.ledger.ranks:
        for term in rank.terms:
            sums[str(rank.rank), *term_and_axis(term)] += rank.total(term) or 0
    return {key: ns / 1e9 for key, ns in sums.items() if ns}


def _numbers(told: Iterable[Sample]) -> Numbers:
    return {
        (one.metric.name, one.labels): one.value
        for one in told
        if one.metric not in (*OF_THE_LATEST, *UNTIL_ASKED, *OF_LEVEL_2) and not one.metric.name.startswith(LIVE_ONLY)
    }


def _are_equal(name: str, one: float | Distribution, other: float | Distribution) -> bool:
    if isinstance(one, Distribution) or isinstance(other, Distribution):
        both = isinstance(one, Distribution) and isinstance(other, Distribution)
        return both and one.counts == other.counts and math.isclose(one.sum, other.sum)
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=OF_INSTANTS.get(name, 0.0))
