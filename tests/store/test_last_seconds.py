"""Ranks whose last records only a witness has: the records of a run continue with them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.live.recorded import rank_of, record
from traincope.events import Kind
from traincope.live.peers.copies.copying import RankCopier
from traincope.live.peers.copies.witnessing import Witness, copy_message
from traincope.live.peers.network.members import Member
from traincope.store import read_run
from traincope.store.layout import RANK_FILE, attempt_directory
from traincope.store.segments.segments import last_instant_ns, read_segment, segment_content
from traincope.timeline import build_timeline, each_rank
from traincope.topology import Host


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose host was lost after 6 of its 10 steps had been shipped; a witness has copies to the end."""
    record(tmp_path / "run", monkeypatch, steps=10)
    directory = rank_of(tmp_path / "run")
    card = json.loads((directory / RANK_FILE).read_text())
    card |= {"ending": None, "ended_wall_ns": None, "process": {**card["process"], "boot_id": "of b"}}
    (directory / RANK_FILE).write_text(json.dumps(card))
    copy = RankCopier(directory, rank=0).changed()
    assert copy is not None
    witness = Witness(attempt_directory(tmp_path / "run", 0), host=Host(name="a", boot_id="1"))
    host = read_run(tmp_path / "run").ranks[0].info.host
    witness.keep(Member(host=host, address="127.0.0.1", port=1), copy_message(copy))
    witness.note()
    (path,) = directory.glob("main-*.seg")
    records = read_segment(path).records
    steps = np.flatnonzero(records["kind"] == Kind.STEP)
    path.chmod(0o600)
    path.write_bytes(segment_content(records[: int(steps[6])]))
    return tmp_path / "run"


def test_the_report_has_the_steps_that_only_the_witness_has(shipped: Path) -> None:
    run = read_run(shipped)
    steps = run.ranks[0].thread("main")
    assert steps["step"][steps["kind"] == Kind.STEP].max() > 6
    (problem,) = run.problems
    assert problem.startswith("the last ")
    assert problem.endswith(" s of rank 0 are from copies that another host kept")
    timeline = build_timeline(run)
    numbers = [step.number for step in timeline.ranks[0].steps]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 6
    assert timeline.witnessed == ()


def test_ranks_that_are_read_one_by_one_have_the_same_records(shipped: Path) -> None:
    (whole,) = read_run(shipped).ranks
    ((timeline, by_rank),) = each_rank(shipped)
    assert by_rank.thread("main").tobytes() == whole.thread("main").tobytes()
    assert by_rank.names == whole.names
    assert timeline.steps == build_timeline(read_run(shipped)).ranks[0].steps


def test_a_thread_that_may_have_a_hole_is_not_continued_and_named(shipped: Path) -> None:
    """A round of shipping was cut: all of `thread-1` arrived, and `main` up to step 5. The copy begins with step 8."""
    (path,) = shipped.glob("attempt-000/witness/*/rank-00000/main-*.seg")
    records = read_segment(path).records
    steps = np.flatnonzero(records["kind"] == Kind.STEP)
    path.write_bytes(segment_content(records[int(steps[8]) :], cut=True))
    other = records[-1:].copy()
    other["start_ns"] = other["end_ns"] = last_instant_ns(records) - 1
    (rank_of(shipped) / "thread-1-00000.seg").write_bytes(segment_content(other))
    run = read_run(shipped)
    assert run.problems == (
        "the last records of thread main of rank 0 are left out: another host has a copy of them, but records before "
        "them may be missing",
    )
    assert [step.number for step in build_timeline(run).ranks[0].steps] == list(range(6))


def test_without_copies_they_are_missing(shipped: Path) -> None:
    shutil.rmtree(shipped / "attempt-000" / "witness")
    assert [step.number for step in build_timeline(read_run(shipped)).ranks[0].steps] == list(range(6))


@pytest.mark.parametrize("change", [{"ending": "clean"}, {"process": None}])
def test_copies_of_another_process_or_of_an_ended_rank_are_not_added(shipped: Path, change: dict[str, object]) -> None:
    path = rank_of(shipped) / RANK_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert [step.number for step in build_timeline(read_run(shipped)).ranks[0].steps] == list(range(6))
