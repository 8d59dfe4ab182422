"""In a job of more hosts than one agent keeps copies of, live rows split waits as the report of all records does."""

from pathlib import Path

import numpy as np
import pytest

from evaluation.score.hosts.training import LATE_SECONDS
from tests.live.peers.hosts import hosts, why_not
from tests.live.peers.jobs import started
from tests.live.peers.test_live_split import TRANSFER, WAIT, merged
from traincope import analyze, open_run
from traincope.metrics.values import step_rows
from traincope.store.side_tables.rows import Row, read_rows

REASON = why_not()
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.sweep, pytest.mark.timeout(1_500)]
NAMES = "abcdef"
CULPRIT, WATCHED_STEPS = 4, 120
JOINED = "passes on this host's parts in collectives"


def test_live_waits_of_all_six_hosts_agree_with_the_report(tmp_path: Path) -> None:
    """Rank 4 is late. Each agent keeps copies of 3 other hosts, so all groups have members that it does not see."""
    signals = tmp_path / "signals"
    signals.mkdir()
    training = ("evaluation.score.hosts.training", "late", CULPRIT, signals)
    with hosts(*NAMES) as made, started(tmp_path, made, training=training) as job:
        job.until(lambda: all(JOINED in job.agent_log(name) for name in NAMES[1:]), "the tree of agents")
        (signals / "go").touch()
        job.until(lambda: (signals / "step").exists() and (signals / "step").read_text() != "", "the fault")
        first = int((signals / "step").read_text()) + 20
        rows = {name: len(rows_of(job.runs[name], rank)) for rank, name in enumerate(NAMES)}
        job.until(
            lambda: all(
                len(rows_of(job.runs[name], rank)) >= rows[name] + 2 * WATCHED_STEPS for rank, name in enumerate(NAMES)
            ),
            "steps",
        )
        (signals / "stop").touch()
        codes = [process.wait(timeout=200) for process in job.processes.values()]
        assert codes == [0] * len(NAMES), job.all_logs()
        run = merged(tmp_path, job)
    analysis = analyze(open_run(run))
    ledgers, light = {rank.rank: rank for rank in analysis.ledger.ranks}, analysis.ledger.unwatched_steps
    steps = range(first, first + WATCHED_STEPS)
    for rank in analysis.timeline.ranks:
        known = {row.step: row for row in step_rows(ledgers[rank.rank], rank, light=light)}
        live = rows_of(run, rank.rank)
        for term in (WAIT, TRANSFER):
            values = np.array([live[step].terms.get(term, 0) for step in steps])
            expected = np.array([known[step].terms.get(term, 0) for step in steps])
            assert np.mean(values) == pytest.approx(np.mean(expected), rel=0.02, abs=20_000)
        if rank.rank != CULPRIT:
            assert np.median([live[step].terms.get(WAIT, 0) for step in steps]) > 0.8e9 * LATE_SECONDS


def rows_of(run: Path, rank: int) -> dict[int, Row]:
    return {row.step: row for row in read_rows(run / f"attempt-000/rank-{rank:05d}", rank=rank)}
