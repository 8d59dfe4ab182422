"""Data of the page of a running job, window by window."""

import json
from pathlib import Path

import pytest

from tests.live.node.test_agent import offline_rows
from tests.live.processes import until
from tests.live.recorded import rank_of, record
from traincope.errors import RunDirectoryError
from traincope.live.metrics.samples import Moment
from traincope.live.metrics.series import series_key
from traincope.live.serve.watching import MAX_SLOW_STEPS, MAX_STEPS, Watcher
from traincope.metrics import catalogue
from traincope.store.layout import RANK_FILE, ROWS_FILE


def as_if_it_ran(run: Path) -> None:
    """Remove the end from rank 0's card. Its process is this one, which runs."""
    card = rank_of(run) / RANK_FILE
    card.write_text(json.dumps(json.loads(card.read_text()) | {"ending": None, "ended_wall_ns": None}))


def watcher(run: Path) -> Watcher:
    return Watcher(run, attempt=0, interval_seconds=0.05)


def test_the_page_has_the_agents_metrics_and_writes_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, steps=6)
    as_if_it_ran(tmp_path)
    report = {step: wall_ns for (_, step), (wall_ns, _) in offline_rows(tmp_path).items()}
    watching = watcher(tmp_path)
    watching.start()
    until(
        lambda: watching.snapshot is not None and len(watching.snapshot.rows) == len(report) - 1,
        "all steps but the first",
    )
    snapshot = watching.snapshot
    watching.stop()
    assert snapshot is not None
    assert not snapshot.over
    numbers = snapshot.numbers(Moment.now())
    assert numbers[series_key(catalogue.RANKS, "alive")] == 1
    assert numbers[series_key(catalogue.STEPS, "0")] == len(report) >= 5
    assert numbers[series_key(catalogue.WALL, "0")] == pytest.approx(sum(row.wall_ns for row in snapshot.rows) / 1e9)
    assert {row.step: row.wall_ns for row in snapshot.rows} == {step: report[step] for step in report if step > 0}
    assert not (rank_of(tmp_path) / ROWS_FILE).exists()


def test_only_the_latest_steps_and_a_few_slow_ones_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, steps=MAX_STEPS + 60, spans=1)
    as_if_it_ran(tmp_path)
    watching = watcher(tmp_path)
    watching.start()
    watching.stop()
    snapshot = watching.snapshot
    assert snapshot is not None
    assert len(snapshot.rows) == MAX_STEPS
    assert len([fault for fault in snapshot.faults if fault.kind == "slow_step"]) <= MAX_SLOW_STEPS


def test_a_finished_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch)
    with pytest.raises(RunDirectoryError, match="is not running: its ranks on this host have ended"):
        watcher(tmp_path).start()
