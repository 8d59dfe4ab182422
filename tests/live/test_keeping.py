"""Full segments become Parquet, and the older ones of them are thinned to keep within the disk's budget."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.live.recorded import rank_of, record, reread
from traincope.analysis import analyze
from traincope.events import NO_STEP, Kind
from traincope.live.keeping import EVERY, Keeper, compact, remove, remove_leftovers, thin
from traincope.live.rank import RankTail
from traincope.store import RECORD_DTYPE, SegmentRecords, read_run
from traincope.store.compacted import is_thinned, read_compacted, write_compacted
from traincope.timeline import open_run

NOW_NS = 1 << 60


def tail_of(out: Path) -> RankTail:
    """Of its rank 0, everything read and released."""
    tail = RankTail(rank_of(out), attempt=0)
    tail.read(now_ns=NOW_NS)
    tail.release(NOW_NS)
    return tail


def segment(index: int, rows: list[tuple[Kind, int]]) -> SegmentRecords:
    """Records of (kind, step), an instant each."""
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
    Keeper(disk_budget_bytes=1 << 20).tidy(tail_of(tmp_path / "run"))
    names = sorted(path.name for path in rank_of(tmp_path / "run").glob("main-*"))
    assert names == ["main-00000.parquet", "main-00001.parquet", "main-00002.parquet", "main-00003.seg"]
    assert reread(tmp_path / "run") == before
    assert read_run(tmp_path / "run").ranks[0].problems == ()


def test_a_segment_with_an_open_record_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import traincope

    monkeypatch.setattr("traincope.record.writer.CAPACITY", 40)
    with traincope.run(tmp_path / "run", throttle=None) as run, traincope.span("outermost"):
        for _ in range(100):
            with traincope.span("work"):
                pass
        run.step()
        Keeper(disk_budget_bytes=1 << 20).tidy(tail_of(tmp_path / "run"))
        names = sorted(path.name for path in rank_of(tmp_path / "run").glob("main-*"))
        assert names == ["main-00000.seg", "main-00001.parquet", "main-00002.seg"]
    assert read_run(tmp_path / "run").ranks[0].problems == ()


def test_a_kill_between_compacting_and_removing_leaves_nothing_twice(
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


def test_a_damaged_segment_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch)
    path = rank_of(tmp_path / "run") / "main-00000.seg"
    path.write_bytes(path.read_bytes()[:-7])
    compact(path)
    assert path.exists()
    path.unlink()
    compact(path)  # gone meanwhile: nothing to do


def test_thinned_a_segment_keeps_some_steps_whole_and_says_what_it_lost(tmp_path: Path) -> None:
    rows = [(Kind.STEP, step) for step in range(EVERY + 2)] + [(Kind.PHASE, 3), (Kind.EVENT, 3), (Kind.SPAN, NO_STEP)]
    path = write_compacted(tmp_path, segment(1, rows))
    thin(path, odd_steps={9})
    assert kinds_and_steps(path) == [
        (Kind.STEP, 0),
        *((Kind.STEP, step) for step in (8, 9, 10)),
        (Kind.STEP, EVERY),
        (Kind.EVENT, 3),
        (Kind.SPAN, NO_STEP),
        (Kind.DROPPED, NO_STEP),
    ]
    assert read_compacted(path).records["value"][-1] == len(rows) - 7
    assert is_thinned(path)


def test_what_is_removed_is_told_by_the_first(tmp_path: Path) -> None:
    """A step that lies in both is gone as a whole: a part of it would be taken for all."""
    first = write_compacted(tmp_path, segment(0, [(Kind.CLOCK, NO_STEP), (Kind.STEP, 3), (Kind.STEP, 4)]))
    second = segment(1, [(Kind.PHASE, 4), (Kind.STEP, 5), (Kind.DROPPED, NO_STEP)])
    second.records["value"][2] = 10
    remove(write_compacted(tmp_path, second), first=first)
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    assert kinds_and_steps(first) == [(Kind.CLOCK, NO_STEP), (Kind.STEP, 3), *[(Kind.DROPPED, NO_STEP)] * 2]
    assert read_compacted(first).records["value"].tolist() == [0, 0, 1, 12]


def test_the_budget_is_kept_and_nothing_is_lost_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of which a part is gone enter no sum; the others say what they said."""
    record(tmp_path / "run", monkeypatch, steps=200, spans=30, capacity=400)
    whole = analyze(open_run(tmp_path / "run")).ledger.ranks[0]
    directory, budget = rank_of(tmp_path / "run"), 60_000
    written = sum(len(records) // 56 for records in reread(tmp_path / "run"))
    Keeper(disk_budget_bytes=budget).tidy(tail_of(tmp_path / "run"))
    files = sorted(directory.glob("main-*"))
    assert sum(path.stat().st_size for path in files) <= budget
    assert files[0].name == "main-00000.parquet"
    (rank,) = read_run(tmp_path / "run").ranks
    main = rank.thread("main")
    assert np.count_nonzero(main["kind"] != Kind.DROPPED) + rank.dropped == written
    assert rank.problems == ()
    kept = analyze(open_run(tmp_path / "run")).ledger
    numbers = kept.ranks[0].numbers
    assert len(numbers) < len(whole.numbers)
    assert (int(numbers[0]), int(numbers[-1])) == (0, 198)
    assert kept.ranks[0].wall_ns.tolist() == whole.wall_ns[numbers].tolist()
    thinned = [step for step in numbers.tolist() if 2 * EVERY < step < 120]
    assert thinned == [step for step in range(120) if step > 2 * EVERY and step % EVERY == 0]


def test_what_was_compacted_long_ago_is_thinned_first(tmp_path: Path) -> None:
    paths = [write_compacted(tmp_path, segment(index, [(Kind.STEP, 5)] * 2000)) for index in range(3)]
    os.utime(paths[1], (1.0, 1.0))
    keeper = Keeper(disk_budget_bytes=sum(path.stat().st_size for path in paths) - 1)
    keeper._keep_within(tmp_path, "main", odd_steps=())
    assert [is_thinned(path) for path in paths] == [False, True, False]


def test_the_recorder_does_not_count_as_dropped_what_was_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import traincope

    monkeypatch.setattr("traincope.record.writer.CAPACITY", 40)
    monkeypatch.setattr("traincope.record.recorder.SEGMENT_BYTES", 1 << 20)
    with traincope.run(tmp_path / "run", throttle=None, disk_budget=3 << 20) as run:
        for _ in range(40):
            for _ in range(20):
                with traincope.span("work"):
                    pass
            run.step()
            Keeper(disk_budget_bytes=1 << 20).tidy(tail_of(tmp_path / "run"))
    (rank,) = read_run(tmp_path / "run").ranks
    assert (rank.dropped, rank.problems) == (0, ())
    assert np.count_nonzero(rank.thread("main")["kind"] == Kind.SPAN) == 800
