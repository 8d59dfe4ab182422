"""The disk budget of a job, on ranks with segments of known steps."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from traincope.events import Kind
from traincope.live.node.job_budget import JobBudget, job_budget, num_bytes
from traincope.live.node.rank import RankTail
from traincope.store import RECORD_DTYPE, SegmentRecords
from traincope.store.segments.compacted import is_thinned, read_compacted, write_compacted
from traincope.store.segments.segments import segment_content

SEGMENTS = 8
STEPS_PER_SEGMENT = 64
ODD_STEP = 3 * STEPS_PER_SEGMENT + 5
"""In segment 3."""


def rank(directory: Path, *, odd: Sequence[int] = ()) -> RankTail:
    """A rank with segments 0 to 7, the last still written. Only its directory and odd steps are read."""
    directory.mkdir(parents=True)
    for index in range(SEGMENTS):
        records = np.zeros(STEPS_PER_SEGMENT * 20, dtype=RECORD_DTYPE)
        records["kind"] = Kind.SPAN
        records["step"] = index * STEPS_PER_SEGMENT + np.arange(len(records)) // 20
        records["start_ns"] = records["end_ns"] = np.random.default_rng(index).integers(0, 1 << 40, len(records))
        segment = SegmentRecords(thread="main", index=index, records=np.sort(records, order="start_ns"), lost_bytes=0)
        if index < SEGMENTS - 1:
            write_compacted(directory, segment)
    (directory / f"main-{SEGMENTS - 1:05d}.seg").write_bytes(segment_content(records[:10]))
    return cast(RankTail, SimpleNamespace(directory=directory, odd_steps=set(odd)))


def names(tail: RankTail) -> list[int]:
    return sorted(int(path.stem.removeprefix("main-")) for path in tail.directory.glob("main-*.parquet"))


def thinned(tail: RankTail) -> list[int]:
    return [index for index in names(tail) if is_thinned(tail.directory / f"main-{index:05d}.parquet")]


def test_within_the_budget_everything_stays(tmp_path: Path) -> None:
    tails = [rank(tmp_path / "rank-00000"), rank(tmp_path / "rank-00001")]
    JobBudget(num_bytes(tail.directory for tail in tails)).apply(tails, world_size=2)
    assert [thinned(tail) for tail in tails] == [[], []]


def test_the_oldest_segments_of_all_ranks_are_thinned_first(tmp_path: Path) -> None:
    tails = [rank(tmp_path / "rank-00000"), rank(tmp_path / "rank-00001")]
    before = num_bytes(tail.directory for tail in tails)
    JobBudget(before - 1).apply(tails, world_size=2)
    assert [names(tail) for tail in tails] == [list(range(SEGMENTS - 1))] * 2
    assert [thinned(tail) for tail in tails] == [[1], []]


def test_a_nodes_part_is_that_of_its_ranks(tmp_path: Path) -> None:
    tail = rank(tmp_path / "rank-00000")
    whole = num_bytes([tail.directory])
    JobBudget(whole * 4).apply([tail], world_size=4)
    assert thinned(tail) == []
    JobBudget(whole * 4 - 4).apply([tail], world_size=4)
    assert thinned(tail) == [1]


def test_evidence_stays_although_the_budget_is_exceeded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tail = rank(tmp_path / "rank-00000", odd=[ODD_STEP])
    usual, odd = (tail.directory / f"kernels-step-{step:08d}.json" for step in (10, ODD_STEP))
    for trace in (usual, odd):
        trace.write_bytes(b"x" * 1000)
    budget = JobBudget(1)
    for _ in range(2):
        budget.apply([tail], world_size=1)
    assert names(tail) == [0, 3, 6]  # the first, the one with the anomaly, the last before the open one
    kept = read_compacted(tail.directory / "main-00003.parquet").records
    assert np.count_nonzero(kept["step"] == ODD_STEP) == 20
    assert (usual.exists(), odd.exists()) == (False, True)
    assert len(caplog.records) == 1
    dropped = read_compacted(tail.directory / "main-00000.parquet").records
    assert dropped["value"][dropped["kind"] == Kind.DROPPED].sum() > 0


def test_events_stay_and_no_evidence_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = rank(tmp_path / "rank-00000", odd=[ODD_STEP])
    path = tail.directory / "main-00004.parquet"
    segment = read_compacted(path)
    records = segment.records.copy()
    records["kind"][7] = Kind.EVENT
    write_compacted(tail.directory, replace(segment, records=records))
    budget = JobBudget(1)
    budget.apply([tail], world_size=1)
    assert names(tail) == [0, 3, 4, 6]
    assert np.count_nonzero(read_compacted(path).records["kind"] == Kind.EVENT) == 1
    monkeypatch.setattr("traincope.live.node.job_budget.read_compacted", None)
    budget.apply([tail], world_size=1)
    assert names(tail) == [0, 3, 4, 6]


@pytest.mark.parametrize("text", ["0", "much", "-1", "inf", "50GB"])
def test_an_impossible_budget_is_reported_and_ends_no_agent(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert job_budget({"TRAINCOPE_JOB_BUDGET": text}) is None
    assert f"must be bytes of all records of the job, e.g. 50e9, not '{text}': ignored" in caplog.text
    assert job_budget({"TRAINCOPE_JOB_BUDGET": "50e9"}) is not None
    assert job_budget({}) is None
