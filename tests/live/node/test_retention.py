"""Full segments become Parquet, and older ones are thinned to keep within the disk budget."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.live.recorded import rank_of, record, reread
from traincope.analysis import analyze
from traincope.events import NO_STEP, Kind
from traincope.live.node.rank import RankTail
from traincope.live.node.retention import STEP_STRIDE, SegmentRetention, compact, remove, remove_leftovers, thin
from traincope.store import RECORD_DTYPE, SegmentRecords, read_run
from traincope.store.layout import COMPACTED
from traincope.store.segments.compacted import is_thinned, read_compacted, write_compacted
from traincope.store.segments.segments import read_segment
from traincope.timeline import open_run

NOW_NS = 1 << 60


def tail_of(out: Path) -> RankTail:
    """Tail of rank 0 after everything was read and released."""
    tail = RankTail(rank_of(out), attempt=0)
    tail.read(now_ns=NOW_NS)
    tail.release(NOW_NS)
    return tail


def segment(index: int, rows: list[tuple[Kind, int]]) -> SegmentRecords:
    """Instants of these (kind, step) pairs."""
    records = np.zeros(len(rows), dtype=RECORD_DTYPE)
    records["kind"], records["step"] = [kind for kind, _ in rows], [step for _, step in rows]
    records["start_ns"] = records["end_ns"] = 1000 * index + np.arange(len(rows))
    return SegmentRecords(thread="main", index=index, records=records, lost_bytes=0)


def kinds_and_steps(path: Path) -> list[tuple[int, int]]:
    records = read_compacted(path).records
    return list(zip(records["kind"].tolist(), records["step"].tolist(), strict=True))


def test_full_segments_are_compacted_and_the_newest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch, steps=10, spans=9, capacity=40)
    before = reread(tmp_path / "run")
    names = sorted(path.name for path in rank_of(tmp_path / "run").glob("main-*"))
    assert names == [f"main-0000{index}.seg" for index in range(4)]
    SegmentRetention(disk_budget_bytes=1 << 20).apply(tail_of(tmp_path / "run"))
    names = sorted(path.name for path in rank_of(tmp_path / "run").glob("main-*"))
    assert names == ["main-00000.parquet", "main-00001.parquet", "main-00002.parquet", "main-00003.seg"]
    assert reread(tmp_path / "run") == before
    assert read_run(tmp_path / "run").ranks[0].problems == ()


def test_a_segment_with_an_open_event_is_not_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import traincope

    monkeypatch.setattr("traincope.record.segments.writer.CAPACITY", 40)
    with traincope.run(tmp_path / "run", budget=None) as run, traincope.span("outermost"):
        for _ in range(100):
            with traincope.span("work"):
                pass
        run.step()
        SegmentRetention(disk_budget_bytes=1 << 20).apply(tail_of(tmp_path / "run"))
        names = sorted(path.name for path in rank_of(tmp_path / "run").glob("main-*"))
        assert names == ["main-00000.seg", "main-00001.parquet", "main-00002.seg"]
    assert read_run(tmp_path / "run").ranks[0].problems == ()


def test_a_kill_between_compacting_and_removing_duplicates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "run", monkeypatch, steps=10, spans=9, capacity=40)
    before, first = reread(tmp_path / "run"), rank_of(tmp_path / "run") / "main-00000.seg"
    content = first.read_bytes()
    compact(first)
    assert not first.exists()
    first.write_bytes(content)
    assert reread(tmp_path / "run") == before
    remove_leftovers(rank_of(tmp_path / "run"))
    assert not first.exists()
    assert reread(tmp_path / "run") == before


def test_a_damaged_segment_is_not_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch)
    path = rank_of(tmp_path / "run") / "main-00000.seg"
    path.write_bytes(path.read_bytes()[:-7])
    compact(path)
    assert path.exists()
    path.unlink()
    compact(path)  # the segment is gone: nothing to do


def test_a_thinned_segment_keeps_some_steps_and_counts_dropped_events(tmp_path: Path) -> None:
    rows = [(Kind.STEP, step) for step in range(STEP_STRIDE + 2)] + [
        (Kind.PHASE, 3),
        (Kind.EVENT, 3),
        (Kind.SPAN, NO_STEP),
    ]
    path = write_compacted(tmp_path, segment(1, rows))
    thin(path, odd_steps={9})
    assert kinds_and_steps(path) == [
        (Kind.STEP, 0),
        *((Kind.STEP, step) for step in (8, 9, 10)),
        (Kind.STEP, STEP_STRIDE),
        (Kind.EVENT, 3),
        (Kind.SPAN, NO_STEP),
        (Kind.DROPPED, NO_STEP),
    ]
    assert read_compacted(path).records["value"][-1] == len(rows) - 7
    assert is_thinned(path)


def test_the_first_segment_counts_the_events_of_removed_ones(tmp_path: Path) -> None:
    """A step that is in both segments is removed completely: a part of it would look like the whole."""
    first = write_compacted(tmp_path, segment(0, [(Kind.CLOCK, NO_STEP), (Kind.STEP, 3), (Kind.STEP, 4)]))
    second = segment(1, [(Kind.PHASE, 4), (Kind.STEP, 5), (Kind.DROPPED, NO_STEP)])
    second.records["value"][2] = 10
    remove(write_compacted(tmp_path, second), first=first)
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    assert kinds_and_steps(first) == [(Kind.CLOCK, NO_STEP), (Kind.STEP, 3), *[(Kind.DROPPED, NO_STEP)] * 2]
    assert read_compacted(first).records["value"].tolist() == [0, 0, 1, 12]


def test_the_budget_is_kept_and_all_dropped_events_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of which events are missing enter no sum. The other steps keep their values.

    How many segments must go depends on how well the times compress.
    """
    record(tmp_path / "run", monkeypatch, steps=205, spans=30, capacity=400)
    whole = analyze(open_run(tmp_path / "run")).ledger.ranks[0]
    directory, budget = rank_of(tmp_path / "run"), 48_000
    steps = {path.stem: set(read_segment(path).records["step"].tolist()) for path in directory.glob("main-*")}
    written = sum(len(records) // 56 for records in reread(tmp_path / "run"))
    SegmentRetention(disk_budget_bytes=budget).apply(tail_of(tmp_path / "run"))
    files = sorted(directory.glob("main-*"))
    assert sum(path.stat().st_size for path in files) <= budget
    assert files[0].name == "main-00000.parquet"
    (rank,) = read_run(tmp_path / "run").ranks
    num_kept = sum(np.count_nonzero(rank.thread(thread)["kind"] != Kind.DROPPED) for thread in rank.threads)
    assert num_kept + rank.dropped == written
    assert rank.problems == ()
    removed = set[int]().union(*(steps[stem] for stem in steps.keys() - {path.stem for path in files}))
    thinned = set[int]().union(*(steps[path.stem] for path in files if path.suffix == COMPACTED and is_thinned(path)))
    kept = analyze(open_run(tmp_path / "run")).ledger.ranks[0]
    expected = [
        step
        for step in whole.numbers.tolist()
        if step not in removed and (step % STEP_STRIDE == 0 or step not in thinned)
    ]
    assert kept.numbers.tolist() == expected
    assert removed
    assert 0 in thinned - removed
    assert 203 not in thinned | removed
    assert kept.wall_ns.tolist() == whole.wall_ns[kept.numbers].tolist()


def test_older_segments_are_thinned_first(tmp_path: Path) -> None:
    paths = [write_compacted(tmp_path, segment(index, [(Kind.STEP, 5)] * 2000)) for index in range(3)]
    os.utime(paths[1], (1.0, 1.0))
    retention = SegmentRetention(disk_budget_bytes=sum(path.stat().st_size for path in paths) - 1)
    retention._keep_within(tmp_path, "main", odd_steps=())
    assert [is_thinned(path) for path in paths] == [False, True, False]


@pytest.mark.slow
def test_the_recorder_does_not_count_compacted_events_as_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import traincope

    monkeypatch.setattr("traincope.record.segments.writer.CAPACITY", 40)
    monkeypatch.setattr("traincope.record.session.recorder.SEGMENT_BYTES", 1 << 20)
    with traincope.run(tmp_path / "run", budget=None, disk_budget=3 << 20) as run:
        for _ in range(40):
            for _ in range(20):
                with traincope.span("work"):
                    pass
            run.step()
            SegmentRetention(disk_budget_bytes=1 << 20).apply(tail_of(tmp_path / "run"))
    (rank,) = read_run(tmp_path / "run").ranks
    assert (rank.dropped, rank.problems) == (0, ())
    assert np.count_nonzero(rank.thread("main")["kind"] == Kind.SPAN) == 800
