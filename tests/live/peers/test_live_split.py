"""While a job of several hosts runs, each agent splits waits in groups that span hosts, as the report does later."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.live.peers.group_training import LATE_SECONDS
from tests.live.peers.hosts import hosts, why_not
from tests.live.peers.jobs import Job, started
from traincope import analyze, open_run
from traincope.metrics.values import step_rows
from traincope.store.side_tables.rows import Row, read_rows

REASON = why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
WAIT, TRANSFER = "exposed_wait[dp]", "exposed_transfer[dp]"
COPIED_STEPS, STEPS = range(150, 300), 500
"""The agents have met before these steps, and the job goes on for seconds after them."""


def merged(tmp_path: Path, job: Job) -> Path:
    """The run with the records of all hosts."""
    first, *others = job.runs.values()
    shutil.copytree(first, tmp_path / "merged")
    for run in others:
        for directory in run.glob("attempt-000/rank-*"):
            shutil.copytree(directory, tmp_path / "merged/attempt-000" / directory.name, dirs_exist_ok=True)
    return tmp_path / "merged"


def has_rows(run: Path) -> bool:
    """True once the agent has written the rows that the test compares: on a busy machine it is behind its ranks."""
    ranks = [read_rows(path, rank=0) for path in run.glob("attempt-000/rank-*")]
    return bool(ranks) and all(any(row.step >= COPIED_STEPS.stop for row in rows) for rows in ranks)


def terms(rows: dict[int, Row], term: str) -> list[int]:
    """The term in each of the steps with detail."""
    return [rows[step].terms.get(term, 0) for step in COPIED_STEPS if rows[step].terms]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("names", "ranks", "budget"),
    [(("a", "b"), 1, ()), (("a", "b"), 2, ()), (("a", "b"), 2, (0.005,)), (("a", "b", "c"), 1, ())],
)
def test_live_waits_for_a_late_rank_of_another_host_agree_with_the_report(
    tmp_path: Path, names: tuple[str, ...], ranks: int, budget: tuple[float, ...]
) -> None:
    """The last rank comes late to every step, by clocks that are 1,000 s apart. With a budget, detail is in windows."""
    training = ("tests.live.peers.group_training", "late", 20, *budget)
    with hosts(*names) as made, started(tmp_path, made, training=training, ranks=ranks, STEPS=str(STEPS)) as job:
        codes = [process.wait(timeout=200) for process in job.processes.values()]
        assert codes == [0] * len(names), job.all_logs()
        job.until(lambda: all(has_rows(run) for run in job.runs.values()), "the rows of all agents", may_end=True)
        run = merged(tmp_path, job)
    analysis = analyze(open_run(run))
    error_ns = sum(clock.bound_ns or 0 for clock in analysis.timeline.clocks)
    ledgers, light = {rank.rank: rank for rank in analysis.ledger.ranks}, analysis.ledger.unwatched_steps
    for rank in analysis.timeline.ranks:
        known = {row.step: row for row in step_rows(ledgers[rank.rank], rank, light=light)}
        live = {row.step: row for row in read_rows(run / f"attempt-000/rank-{rank.rank:05d}", rank=rank.rank)}
        for term in (WAIT, TRANSFER):
            expected, values = terms(known, term), terms(live, term)
            assert np.abs(np.subtract(values, expected)).max() <= error_ns
            assert np.mean(values) == pytest.approx(np.mean(expected), rel=0.02, abs=20_000)
        if rank.rank != len(names) * ranks - 1:
            assert np.median(terms(live, WAIT)) > 0.8e9 * LATE_SECONDS
