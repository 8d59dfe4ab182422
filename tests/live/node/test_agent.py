"""Agent over recorded runs without torch, look by look."""

import json
import logging
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

import traincope
from tests.live.recorded import dead_process, rank_of, record
from traincope.analysis import analyze
from traincope.analysis.faults.faults import FaultKind
from traincope.errors import RunDirectoryError
from traincope.events import Kind
from traincope.live.metrics.samples import Moment
from traincope.live.metrics.series import series_key
from traincope.live.node.agent import Agent, Options, rest_seconds
from traincope.live.node.rank import MAIN, RankTail
from traincope.live.node.retention import compact
from traincope.live.serve.watching import Watcher
from traincope.live.window import RankState, Window
from traincope.metrics import catalogue
from traincope.record.session.identity import this_host
from traincope.store import read_run
from traincope.store.layout import RANK_FILE, ROWS_FILE
from traincope.store.side_tables.row_thinning import HOUR_NS, merged_row
from traincope.store.side_tables.rows import append_rows, read_rows
from traincope.timeline import open_run
from traincope.topology import Host

SAMPLES = Path(__file__).parents[3] / "sample_runs"


@dataclass
class WindowLog:
    """Observer that keeps its windows."""

    windows: list[Window] = field(default_factory=list)

    def observe(self, window: Window) -> None:
        self.windows.append(window)

    closed: bool = False

    def close(self) -> None:
        self.closed = True


class Broken(WindowLog):
    def observe(self, window: Window) -> None:
        raise ValueError(f"window of attempt {window.attempt}")


def options(run: Path, *, attempt: int = 0) -> Options:
    return Options(run=run, attempt=attempt, disk_budget_bytes=1 << 30, interval_seconds=0.01, share_of_a_core=1.0)


def watch(run: Path) -> WindowLog:
    observer = WindowLog()
    Agent(options(run), observers=(observer,)).run()
    return observer


def here(sample: str, run: Path, *, host: Host | None = None) -> Path:
    """Copy of a sample whose ranks are on this host, or on `host`. Their processes do not run."""
    owner = host or this_host()
    shutil.copytree(SAMPLES / sample, run)
    for path in run.glob("attempt-*/rank-*/" + RANK_FILE):
        card = json.loads(path.read_text()) | {"host": owner.name, "boot_id": owner.boot_id}
        path.write_text(json.dumps(card))
    return run


def offline_rows(run: Path) -> dict[tuple[int, int], tuple[int, dict[str, int]]]:
    """(Rank, step) -> wall time and terms from the report's analysis."""
    return {
        (rank.rank, step): (
            int(rank.wall_ns[at]),
            {term: int(values[at]) for term, values in rank.terms.items() if values is not None and values[at]},
        )
        for rank in analyze(open_run(run)).ledger.ranks
        for at, step in enumerate(rank.numbers.tolist())
    }


def rows_of(run: Path, *, ranks: int) -> dict[tuple[int, int], tuple[int, dict[str, int]]]:
    rows = [row for rank in range(ranks) for row in read_rows(rank_of(run, rank), rank=rank)]
    return {(row.rank, row.step): (row.wall_ns, dict(row.terms)) for row in rows}


@pytest.mark.parametrize("sample", ["demo", "demo-3d"])
def test_rows_equal_the_report(sample: str, tmp_path: Path) -> None:
    run = here(sample, tmp_path / "run")
    (window,) = watch(run).windows
    expected = offline_rows(run)
    assert len(expected) >= 24
    assert rows_of(run, ranks=len(window.ranks)) == expected
    assert all(sum(row.terms.values()) == row.wall_ns for row in window.rows)
    assert window.last
    assert window.warm_up == 0
    assert {rank.state for rank in window.ranks} == {RankState.ENDED}
    assert window.analysis is not None
    report = analyze(open_run(run))
    assert window.analysis.ledger.wall_ns == report.ledger.wall_ns
    assert window.analysis.comm == report.comm
    assert window.analysis.utilization.ratios.mfu == report.utilization.ratios.mfu
    assert [rank.counted.tolist() for rank in window.analysis.ledger.ranks] == [
        rank.counted.tolist() for rank in report.ledger.ranks
    ]


def test_each_step_is_shown_once_even_after_an_agent_restart(tmp_path: Path) -> None:
    run = here("demo", tmp_path / "run")
    assert len(watch(run).windows[0].rows) == len(offline_rows(run))
    (again,) = watch(run).windows
    assert again.rows == ()
    assert again.faults == ()
    assert rows_of(run, ranks=4) == offline_rows(run)


def test_an_agent_thins_rows_older_than_two_days_and_continues(tmp_path: Path) -> None:
    run = here("demo", tmp_path / "run")
    watch(run)
    (first, *rows) = read_rows(rank_of(run), rank=0)
    days_ago = [replace(row, start_ns=row.start_ns - 60 * HOUR_NS) for row in (first, *rows[:9])]
    (rank_of(run) / ROWS_FILE).unlink()
    append_rows(rank_of(run), [*days_ago, *rows[9:20]])
    (window,) = watch(run).windows
    assert [row.step for row in window.rows] == [row.step for row in rows[20:]]
    assert read_rows(rank_of(run), rank=0) == (days_ago[0], merged_row(days_ago[1:]), *rows[9:])


def test_an_agent_continues_after_the_existing_rows(tmp_path: Path) -> None:
    run = here("demo", tmp_path / "run")
    watch(run)
    whole = rows_of(run, ranks=4)
    for rank, lines in ((0, 3), (1, 4), (2, 4), (3, 0)):
        path = rank_of(run, rank) / ROWS_FILE
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]) + b"[99,1")
    (window,) = watch(run).windows
    assert {row.rank: min(r.step for r in window.rows if r.rank == row.rank) for row in window.rows} == {
        0: 3,
        1: 4,
        2: 4,
        3: 0,
    }
    assert rows_of(run, ranks=4) == whole


def test_a_growing_run_is_reduced_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincope.live.node.ready.SETTLING_NS", 0)
    with traincope.run(tmp_path / "run", budget=None) as run:
        for _ in range(3):
            run.step()
        agent = Agent(options(tmp_path / "run"))
        first = agent.look()
        assert [row.step for row in first.rows] == [0, 1]
        assert [rank.state for rank in first.ranks] == [RankState.ALIVE]
        assert not first.last
        agent._tidy()
        assert agent.look().analysis is None
        run.log(loss=float("nan"))
        run.step()
        second = agent.look()
        assert [row.step for row in second.rows] == [2]
        assert [fault.kind for fault in second.faults] == [FaultKind.NOT_FINITE]
        assert second.rows[0].anomalous
        assert second.analysis is not None
        assert [rank.numbers[rank.counted].tolist() for rank in second.analysis.ledger.ranks] == [[2]]
        agent._tidy()
        run.step()
        third = Agent(options(tmp_path / "run")).look()  # another agent finds the whole run and the earlier faults
        assert third.faults == ()
        assert agent.look().faults == ()
    last = Agent(options(tmp_path / "run")).look()
    assert [row.step for row in (*third.rows, *last.rows)] == [3]
    assert last.last
    assert last.ranks[0].num_records == sum(len(s.records) for s in read_run(tmp_path / "run").ranks[0].segments)
    assert rows_of(tmp_path / "run", ranks=1) == offline_rows(tmp_path / "run")


def test_the_rest_is_proportional_to_a_look_and_at_most_a_minute(tmp_path: Path) -> None:
    usual = Options(run=tmp_path, attempt=0, disk_budget_bytes=0, share_of_a_core=0.01)
    assert [rest_seconds(spent, usual) for spent in (0.01, 0.125, 3.0)] == [5.0, 12.5, 60.0]
    assert rest_seconds(3.0, replace(usual, interval_seconds=90.0)) == 90.0
    assert rest_seconds(3.0, replace(usual, share_of_a_core=1.0)) == 5.0


def test_a_restart_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincope.live.node.ready.SETTLING_NS", 0)
    with suppress(ValueError), traincope.run(tmp_path / "run"):
        traincope.step()
        traincope.step()
        raise ValueError("lost")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    observer = []
    with traincope.run(tmp_path / "run", budget=None) as run:
        agent = Agent(options(tmp_path / "run", attempt=1))
        for _ in range(4):
            run.step()
            run.step()
            observer += agent.look().faults
            agent._tidy()
    observer += agent.look().faults
    assert [(fault.kind, fault.what) for fault in observer] == [
        (FaultKind.RESTART, "attempt 1: rank 0 raised ValueError"),
    ]


def test_a_restarted_agent_and_a_page_know_earlier_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint in a compacted segment, and a NaN in a segment that is not compacted."""
    monkeypatch.setattr("traincope.live.node.ready.SETTLING_NS", 0)
    monkeypatch.setattr("traincope.record.segments.writer.CAPACITY", 40)
    with traincope.run(tmp_path / "run", budget=None) as run:
        first, faults = Agent(options(tmp_path / "run")), []
        for step in range(30):
            if step == 2:
                traincope.event("checkpoint saved")
            if step == 29:
                run.log(loss=float("nan"))
            run.step()
            faults += first.look().faults
            first._tidy()
        reported = [(fault.kind, fault.at_ns) for fault in faults if fault.kind is not FaultKind.SLOW_STEP]
        assert [kind for kind, _ in reported] == [FaultKind.EVENT, FaultKind.NOT_FINITE]
        assert (rank_of(tmp_path / "run") / "main-00000.parquet").exists()
        window = Agent(options(tmp_path / "run")).look()
        assert [(fault.kind, fault.at_ns) for fault in window.earlier] == reported
        assert window.faults == ()
        page = Watcher(tmp_path / "run", attempt=0)
        page.start()
        page.stop()
        assert page.snapshot is not None
        assert [fault.kind for fault in page.snapshot.faults] == [FaultKind.NOT_FINITE]
        numbers = page.snapshot.numbers(Moment.now())
        assert (
            numbers[series_key(catalogue.CHECKPOINTS)] == numbers[series_key(catalogue.FAULTS, "0", "not_finite")] == 1
        )


def test_reduced_events_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincope.live.node.ready.SETTLING_NS", 0)
    with traincope.run(tmp_path / "run", budget=None) as run:
        agent = Agent(options(tmp_path / "run"))
        held = []
        for _ in range(4):
            for _ in range(5):
                for _ in range(20):
                    with traincope.span("work"):
                        pass
                run.step()
            agent.look()
            agent._tidy()
            held.append(sum(tail.num_held for tail in agent._tails.values()))
    assert max(held) <= 60  # events of the last reduced step and the current one


def test_a_step_too_large_to_hold_gets_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincope.live.node.agent.MAX_HELD_RECORDS", 100)
    monkeypatch.setattr("traincope.live.node.agent.STALLED_RANK_NS", 0)
    with traincope.run(tmp_path / "run", budget=None) as run:
        run.step()
        agent = Agent(options(tmp_path / "run"))
        agent.look()
        for _ in range(200):
            with traincope.span("work"):
                pass
        agent.look()
        agent._tidy()
        assert sum(tail.num_held for tail in agent._tails.values()) < 100
        for _ in range(3):
            run.step()
    last = agent.look()
    assert [row.step for row in last.rows] == [1, 2]


def test_an_observer_that_raises_does_not_affect_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path / "run", monkeypatch)
    observer = WindowLog()
    with caplog.at_level(logging.WARNING):
        Agent(options(tmp_path / "run"), observers=(Broken(), observer)).run()
    assert len(observer.windows) == 1
    assert "window of attempt 0" in caplog.text


def test_rows_that_cannot_be_written_are_still_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path / "run", monkeypatch)
    (rank_of(tmp_path / "run") / ROWS_FILE).mkdir()
    tail = Agent(options(tmp_path / "run"))
    monkeypatch.setattr("traincope.live.node.rank.read_rows", lambda *_, **__: ())
    with caplog.at_level(logging.WARNING):
        window = tail.look()
    assert [row.step for row in window.rows] == [0, 1, 2]
    assert "could not be written" in caplog.text


def test_a_damaged_segment_is_logged_once_and_others_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = here("demo", tmp_path / "run")
    (rank_of(run) / "main-00007.seg").write_bytes(b"something else")
    agent = Agent(options(run))
    assert len(agent.look().rows) == len(offline_rows(run))
    agent.look()
    assert [line for line in caplog.messages if "main-00007.seg is not a traincope segment" in line] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_rank_whose_process_is_gone_is_a_fault(tmp_path: Path) -> None:
    run = here("demo", tmp_path / "run")
    path = rank_of(run, 2) / RANK_FILE
    card = {name: value for name, value in json.loads(path.read_text()).items() if name != "ending"}
    path.write_text(json.dumps(card | {"process": dead_process()}))
    (window,) = watch(run).windows
    assert [rank.state for rank in window.ranks] == [*[RankState.ENDED] * 2, RankState.GONE, RankState.ENDED]
    ends = [(fault.kind, fault.ranks) for fault in window.faults if fault.is_fault and fault.ranks == (2,)]
    assert ends == [(FaultKind.KILLED, (2,))]


@pytest.mark.slow
def test_a_rank_whose_process_is_unknown_counts_as_alive(tmp_path: Path) -> None:
    """The rank's process belongs to another container, so its end cannot be known."""
    run = here("demo", tmp_path / "run")
    path = rank_of(run, 2) / RANK_FILE
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"ending": None, "process": dead_process(pid_namespace=1)})
    )
    window = Agent(options(run)).look()
    assert [rank.state for rank in window.ranks] == [*[RankState.ENDED] * 2, RankState.ALIVE, RankState.ENDED]
    assert not window.last
    assert [fault for fault in window.faults if fault.ranks == (2,)] == []


def test_ranks_of_another_host_are_ignored(tmp_path: Path) -> None:
    here("demo", tmp_path / "run", host=Host(name="elsewhere", boot_id="1"))
    with pytest.raises(RunDirectoryError, match="no rank of this host"):
        Agent(options(tmp_path / "run")).run()


def test_an_agent_reduces_only_the_ranks_of_its_node(tmp_path: Path) -> None:
    """Waits for ranks of the other node cannot be split: they count as transfer."""
    run = here("demo", tmp_path / "run")
    for rank in (1, 3):
        path = rank_of(run, rank) / RANK_FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | {"host": "elsewhere", "boot_id": "1"}))
    (window,) = watch(run).windows
    assert {row.rank for row in window.rows} == {0, 2}
    assert window.info.world_size == 4
    expected = offline_rows(run)
    for row in window.rows:
        wall_ns, terms = expected[row.rank, row.step]
        assert row.wall_ns == wall_ns == sum(row.terms.values())
        assert row.terms["forward"] == terms["forward"]
        assert "exposed_wait[fsdp]" not in row.terms
    assert not (rank_of(run, 1) / ROWS_FILE).exists()


def test_a_vanished_run_directory_ends_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch)
    observer = WindowLog()
    agent = Agent(options(tmp_path / "run"), observers=(observer,))
    agent.look()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match="missing"):
        agent.run()
    assert observer.closed


def test_without_pyarrow_segments_stay_and_one_warning_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import sys

    record(tmp_path / "run", monkeypatch, steps=10, spans=8, capacity=40)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with caplog.at_level(logging.WARNING):
        agent = Agent(options(tmp_path / "run"))
        agent.run()
        assert [tail.index for tail in agent._tails[0].full_segments()] == [0, 1]
        agent._tidy()
        left = [
            key for key in agent._tails[0].segments if key[0] == MAIN
        ]  # garbage collection on another thread has segments of its own
        assert left == [(MAIN, 2), (MAIN, 3)], "the other segments are not read any more"
    assert caplog.text.count("pip install") == 1
    assert len(list(rank_of(tmp_path / "run").glob("main-*.seg"))) == 4


def test_flops_in_a_segment_compacted_by_an_earlier_agent_are_known(tmp_path: Path) -> None:
    run = here("demo", tmp_path / "run")
    whole = read_run(run).ranks[0]
    for path in rank_of(run).glob("*.seg"):
        compact(path)
    tail = RankTail(rank_of(run), attempt=0)
    tail.read(now_ns=1 << 60)
    for _ in range(2):
        kept = np.concatenate([segment.records for segment in tail.records().segments])
        for kind in (Kind.FLOPS, Kind.CLOCK):
            written = np.concatenate([segment.records[segment.records["kind"] == kind] for segment in whole.segments])
            assert kept[kept["kind"] == kind].tolist() == (written[:1] if kind is Kind.CLOCK else written).tolist()
        tail.release(1 << 60)


def test_old_flops_are_in_every_window(tmp_path: Path) -> None:
    run = here("demo", tmp_path / "run")
    tail = RankTail(rank_of(run), attempt=0)
    tail.read(now_ns=1 << 60)
    whole = tail.records()
    tail.release(1 << 60)
    (kept,) = [segment for segment in tail.records().segments if len(segment.records)]
    flops = [record for segment in whole.segments for record in segment.records[segment.records["kind"] == 12]]
    assert sorted(kept.records[kept.records["kind"] == 12].tolist()) == sorted(record.tolist() for record in flops)
    assert replace(tail.status(), info=whole.info).num_records == sum(
        len(segment.records) for segment in read_run(run).ranks[0].segments
    )
