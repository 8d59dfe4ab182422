"""Ranks that write thousands of records per second: their copies join, or the report states what is missing."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.live.recorded import rank_of, record
from traincope.events import Kind
from traincope.live.peers.copies.copying import MAX_PACKED_BYTES, RankCopier
from traincope.live.peers.copies.witnessing import Witness, copy_message
from traincope.live.peers.network.members import Member
from traincope.record.segments.writer import CAPACITY
from traincope.store import RankRecords, RunRecords, read_run
from traincope.store.layout import RANK_FILE, attempt_directory
from traincope.store.segments.segments import RECORD_DTYPE, segment_content
from traincope.topology import Host

S = 1_000_000_000
SHIPPED_S, LOST_S, PAUSE_S = 6, 22, 4
"""The last round of shipping, the loss of the host a round later, and the longest pause between copies."""
WITNESS = Host(name="witness", boot_id="1")


def records_of(rate: int, *, noise: bool) -> NDArray[np.void]:
    """A rank's records at `rate` per second. `noise`: durations and values that no compression makes smaller."""
    count, rng = LOST_S * rate, np.random.default_rng(5)
    records = np.zeros(count, dtype=RECORD_DTYPE)
    records["kind"], records["step"] = Kind.SPAN, np.arange(count) // 100
    records["kind"][::CAPACITY] = Kind.CLOCK
    records["start_ns"] = np.arange(count) * (S // rate) + S
    records["end_ns"] = records["start_ns"] + rng.integers(1, S // rate, count)
    if noise:
        for field in ("value", "sequence", "group", "window", "tag", "peer"):
            most = min(np.iinfo(records[field].dtype).max, 1 << 60)
            records[field] = rng.integers(0, most, count)
    return records


def write(directory: Path, records: NDArray[np.void]) -> None:
    for path in directory.glob("main-*"):
        path.unlink()
    for index, first in enumerate(range(0, len(records), CAPACITY)):
        content = segment_content(records[first : first + CAPACITY])
        (directory / f"main-{index:05d}.seg").write_bytes(content)


def lost(run: Path, patch: pytest.MonkeyPatch, truth: NDArray[np.void]) -> RunRecords:
    """The run of a host that was lost, as its last round of shipping and a witness have it."""
    record(run, patch)
    directory = rank_of(run)
    shutil.rmtree(run / "tiles", ignore_errors=True)
    card = json.loads((directory / RANK_FILE).read_text())
    card |= {"ending": None, "ended_wall_ns": None, "process": {**card["process"], "boot_id": "of b"}}
    (directory / RANK_FILE).write_text(json.dumps(card))
    host = read_run(run).ranks[0].info.host
    witness, copier = Witness(attempt_directory(run, 0), host=WITNESS), RankCopier(directory, rank=0)
    for at_s in range(SHIPPED_S - PAUSE_S, LOST_S + 1, PAUSE_S):
        write(directory, truth[truth["start_ns"] < (at_s + 1) * S])
        copy = copier.changed()
        assert copy is not None
        assert len(copy.packed) <= MAX_PACKED_BYTES
        witness.keep(Member(host=host, address="127.0.0.1", port=1), copy_message(copy))
    witness.note()
    write(directory, truth[truth["start_ns"] < (SHIPPED_S + 1) * S])
    return read_run(run)


def main_of(rank: RankRecords) -> NDArray[np.void]:
    return np.concatenate([segment.records for segment in rank.segments])


@pytest.mark.parametrize("rate", [900, 2_000, 3_000])
def test_copies_of_a_rank_of_so_many_records_per_second_lose_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    truth = records_of(rate, noise=False)
    run = lost(tmp_path / "run", monkeypatch, truth)
    assert main_of(run.ranks[0]).tobytes() == truth.tobytes()
    (problem,) = run.problems
    assert problem == f"the last {LOST_S - SHIPPED_S:.1f} s of rank 0 are from copies that another host kept"


@pytest.mark.parametrize(("rate", "noise"), [(6_000, False), (3_000, True)])
def test_more_records_than_copies_hold_are_a_gap_with_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int, noise: bool
) -> None:
    """The newest copy holds less than the time since the one before, so nothing joins."""
    truth = records_of(rate, noise=noise)
    run = lost(tmp_path / "run", monkeypatch, truth)
    shipped = truth[truth["start_ns"] < (SHIPPED_S + 1) * S]
    assert main_of(run.ranks[0]).tobytes() == shipped.tobytes()
    ((witnessed,),) = (host.ranks for host in run.witnessed)
    copies = main_of(witnessed)
    copies, newest = (records[records["kind"] != Kind.CLOCK] for records in (copies, truth))
    assert copies.tobytes() == newest[-len(copies) :].tobytes()
    copied_s = (int(copies["end_ns"].max()) - int(copies["start_ns"][15])) / S
    missing_s = LOST_S - SHIPPED_S - copied_s
    assert 1 < copied_s < PAUSE_S
    (problem,) = run.problems
    assert problem == (
        f"{missing_s:.1f} s of rank 0 are missing after its last record here; another host has copies of "
        f"{copied_s:.1f} s after that, which the tables leave out"
    )
