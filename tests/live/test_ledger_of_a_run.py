"""The agent over recorded runs, its numbers against the report's."""

from collections import defaultdict
from pathlib import Path

import pytest

from tests.live.test_agent import here, options
from tests.live.told import Told
from traincope import metrics
from traincope.analysis import Analysis, analyze
from traincope.live.agent import Agent
from traincope.live.counting import term_and_axis
from traincope.live.exporting import Exporting
from traincope.timeline import open_run


@pytest.mark.parametrize("sample", ["demo", "demo-3d"])
def test_the_numbers_of_a_run_are_those_of_its_report(sample: str, tmp_path: Path) -> None:
    """A sample's ranks are long gone, so that one look sees all."""
    run = here(sample, tmp_path / "run")
    observer = Exporting(job="job", host="node-3", environment={"TRAINCOPE_METRICS": "off"})
    Agent(options(run), observers=(observer,)).run()
    found, report = Told(observer.samples()), analyze(open_run(run))
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
