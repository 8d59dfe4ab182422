"""What the page of a running job is made of, window by window."""

import json
from pathlib import Path

import pytest

from tests.live.processes import until
from tests.live.recorded import rank_of, record
from tests.live.test_agent import offline_rows
from traincope import metrics
from traincope.errors import RunDirectoryError
from traincope.live.samples import Moment
from traincope.live.watching import MOST_SLOW, MOST_STEPS, Watcher, key_of
from traincope.store.layout import RANK_FILE, ROWS_FILE


def as_if_it_ran(run: Path) -> None:
    """Its process, this one, is there, and has said nothing of an end."""
    card = rank_of(run) / RANK_FILE
    card.write_text(json.dumps(json.loads(card.read_text()) | {"ending": None, "ended_wall_ns": None}))


def watcher(run: Path) -> Watcher:
    return Watcher(run, attempt=0, interval_seconds=0.05)


def test_its_numbers_are_the_catalogue_s_and_it_writes_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, steps=6)
    as_if_it_ran(tmp_path)
    report = {step: wall_ns for (_, step), (wall_ns, _) in offline_rows(tmp_path).items()}
    watching = watcher(tmp_path)
    watching.start()
    until(lambda: watching.seen is not None and len(watching.seen.rows) == len(report) - 1, "all steps but the first")
    seen = watching.seen
    watching.stop()
    assert seen is not None
    assert not seen.over
    told = seen.numbers(Moment.now())
    assert told[key_of(metrics.RANKS, "alive")] == 1
    assert told[key_of(metrics.STEPS, "0")] == len(report) >= 5
    assert told[key_of(metrics.WALL, "0")] == pytest.approx(sum(row.wall_ns for row in seen.rows) / 1e9)
    assert {row.step: row.wall_ns for row in seen.rows} == {step: report[step] for step in report if step > 0}
    assert not (rank_of(tmp_path) / ROWS_FILE).exists()


def test_only_the_latest_steps_and_a_few_slow_ones_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, steps=MOST_STEPS + 60, spans=1)
    as_if_it_ran(tmp_path)
    watching = watcher(tmp_path)
    watching.start()
    watching.stop()
    seen = watching.seen
    assert seen is not None
    assert len(seen.rows) == MOST_STEPS
    assert len([fault for fault in seen.faults if fault.kind == "slow_step"]) <= MOST_SLOW


def test_a_run_that_is_over_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch)
    with pytest.raises(RunDirectoryError, match="is not running: its ranks on this host are over"):
        watcher(tmp_path).start()
