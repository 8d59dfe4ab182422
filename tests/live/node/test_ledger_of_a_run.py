"""Agent over recorded runs: its metrics compared with the report and with the replay."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.live.node.test_agent import here, options
from tests.live.sample_table import SampleTable
from traincope.analysis import Analysis, analyze
from traincope.analysis.attribution.terms import NOT_MEASURED
from traincope.live.metrics.folding import PER_RANK_VARIABLE
from traincope.live.node.agent import Agent
from traincope.live.serve.exporting import Exporting
from traincope.metrics import catalogue
from traincope.metrics.labels import term_and_axis
from traincope.metrics.sample import Distribution, Sample
from traincope.record.session.identity import this_host
from traincope.timeline import open_run
from traincope_exporters.history import LIVE_ONLY, final

OF_EACH_RANK = {"TRAINCOPE_METRICS": "off", PER_RANK_VARIABLE: "on"}
OF_THE_LATEST = (catalogue.MFU, catalogue.MFU_PAPER, catalogue.HFU, catalogue.BUBBLE, catalogue.BUBBLE_PART)
"""Ratios: over all new steps of a look in a running job, over each step in a finished run."""
UNTIL_ASKED = (catalogue.CHECKPOINT_AGE,)
"""Ages, which do not exist after the end of a job."""
OF_LEVEL_2 = (catalogue.ACTION_TIME, catalogue.MODULE_TIME)
"""Metrics that a running job exports only at level 2. A finished run always has them."""
OF_INSTANTS = {
    catalogue.JOB_TIME.name: 0.002,
    catalogue.GOODPUT.name: 0.001,
    catalogue.BADPUT.name: 0.002,
    catalogue.MTBF.name: 0.002,
}
"""Tolerances. The agent uses the first reading of both clocks, the report all readings."""

Numbers = Mapping[tuple[str, tuple[str, ...]], float | Distribution]


@pytest.mark.parametrize(("sample", "attempt"), [("demo", 0), ("demo-3d", 0), ("restart", 1)])
def test_the_metrics_of_a_run_equal_its_report(sample: str, attempt: int, tmp_path: Path) -> None:
    """The sample's ranks have ended, so one look covers the run."""
    run = here(sample, tmp_path / "run")
    observer = Exporting(job="job", host=this_host().name, environment=OF_EACH_RANK)
    Agent(options(run, attempt=attempt), observers=(observer,)).run()
    table, report = SampleTable(observer.samples()), analyze(open_run(run))
    live, afterwards = _numbers(observer.samples()), _numbers(final(report))
    assert len(live) > 60
    assert live.keys() ^ afterwards.keys() == set()
    assert {
        key: (live[key], afterwards[key]) for key in live if not _are_equal(key[0], live[key], afterwards[key])
    } == {}
    assert table.of(catalogue.LEDGER) == pytest.approx(_ledger(report))
    assert {term for _, term, _ in table.of(catalogue.LEDGER)}.isdisjoint(NOT_MEASURED)
    assert table.of(catalogue.WALL) == {(str(r.rank),): r.total_wall_ns / 1e9 for r in report.ledger.ranks}
    assert table[catalogue.MFU] == pytest.approx(report.utilization.ratios.mfu)
    assert table[catalogue.HFU] == pytest.approx(report.utilization.ratios.hfu)
    assert table.of(catalogue.COLLECTIVE_BYTES) == {(row.axis, row.operation): row.num_bytes for row in report.comm}
    assert table.of(catalogue.STRAGGLER_WAIT) == {
        (str(r.rank),): r.straggler_wait_ns / 1e9 for r in report.stragglers.ranks
    }
    assert report.goodput is not None
    assert report.goodput.productive_ns is not None
    assert table[catalogue.JOB_TIME, "productive"] == pytest.approx(report.goodput.productive_ns / 1e9)
    for part, ns in report.goodput.parts.items():
        assert ns is not None
        assert table[catalogue.JOB_TIME, part] == pytest.approx(ns / 1e9, abs=OF_INSTANTS[catalogue.JOB_TIME.name])


def _ledger(report: Analysis) -> dict[tuple[str, ...], float]:
    sums: dict[tuple[str, ...], int] = defaultdict(int)
    for rank in report.ledger.ranks:
        for term in rank.terms:
            sums[str(rank.rank), *term_and_axis(term)] += rank.total(term) or 0
    return {key: ns / 1e9 for key, ns in sums.items() if ns}


def _numbers(samples: Iterable[Sample]) -> Numbers:
    return {
        (sample.metric.name, sample.labels): sample.value
        for sample in samples
        if sample.metric not in (*OF_THE_LATEST, *UNTIL_ASKED, *OF_LEVEL_2)
        and not sample.metric.name.startswith(LIVE_ONLY)
    }


def _are_equal(name: str, first: float | Distribution, other: float | Distribution) -> bool:
    if isinstance(first, Distribution) or isinstance(other, Distribution):
        both = isinstance(first, Distribution) and isinstance(other, Distribution)
        return both and first.counts == other.counts and math.isclose(first.sum, other.sum)
    return math.isclose(first, other, rel_tol=1e-9, abs_tol=OF_INSTANTS.get(name, 0.0))
