"""Copies of a rank: what they hold, their bounds, and how they are read back."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import traincope
from tests.live.recorded import rank_of, record
from traincope.events import OPEN, Kind
from traincope.live.node.retention import compact, thin
from traincope.live.peers.copies import copying
from traincope.live.peers.copies.copying import (
    MAX_FLIGHT_BYTES,
    MAX_LOOKS_BYTES,
    MAX_PACKED_BYTES,
    RankCopier,
    RankCopy,
)
from traincope.live.peers.copies.witnessing import Witness, copy_message, read_copy
from traincope.live.peers.network.channel import MAX_MESSAGE_BYTES
from traincope.live.peers.network.members import Member
from traincope.store import read_run
from traincope.store.job.flight import Flight
from traincope.store.job.looks import Look, append_look, read_looks
from traincope.store.job.witness import witness_directory
from traincope.store.layout import FLIGHT_FILE, LOOKS_FILE, attempt_directory
from traincope.store.reading import RankRecords
from traincope.store.redaction import redact
from traincope.store.segments.joining import MAX_RECORDS, held_since_ns
from traincope.store.segments.segments import HEADER_BYTES, SegmentRecords, read_segment, segment_content
from traincope.timeline import open_run
from traincope.topology import Host

A, B = Host(name="a", boot_id="1"), Host(name="b/../b", boot_id="2")
OF_B = Member(host=B, address="127.0.0.1", port=1)


def keep(directory: Path, witness_run: Path, *, rank: int = 0) -> None:
    """Copy a rank into the run directory of another host, as its agent would."""
    copy = RankCopier(directory, rank=rank).changed()
    assert copy is not None
    witness = Witness(attempt_directory(witness_run, 0), host=A)
    witness.keep(OF_B, copy_message(copy))
    witness.note()


def kept(run: Path) -> RankRecords:
    (host,) = read_run(run).witnessed
    assert (host.heard.host, host.heard.witness) == (B, A)
    (copy,) = host.ranks
    return copy


def test_a_short_run_is_copied_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch)
    keep(rank_of(tmp_path / "run"), tmp_path / "run")
    copy, original = kept(tmp_path / "run"), read_run(tmp_path / "run").ranks[0]
    assert copy.thread("main").tobytes() == original.thread("main").tobytes()
    spans = copy.thread("main")[copy.thread("main")["kind"] == Kind.SPAN]
    assert {copy.name(int(number)) for number in spans["name"]} == {"work"}
    assert copy.info.coord == original.info.coord
    assert copy.problems == ()
    assert open_run(tmp_path / "run").witnessed == ()  # the rank's own records are as long


def test_open_records_are_copied_however_old_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "KEPT_NS", 0)
    with traincope.run(tmp_path / "run", budget=None) as run:
        run.step()
        with traincope.span("outer"):
            for _ in range(50):
                with traincope.span("inner"):
                    pass
            keep(rank_of(tmp_path / "run"), tmp_path / "run")
    main = kept(tmp_path / "run").thread("main")
    still_open = [kept(tmp_path / "run").name(int(row["name"])) for row in main if row["end_ns"] == OPEN]
    assert "outer" in still_open
    closed = (main["kind"] == Kind.SPAN) & (main["end_ns"] != OPEN)
    assert int(np.count_nonzero(closed)) <= 1


def test_a_copy_is_bounded_and_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch, steps=20, spans=MAX_RECORDS // 10)
    original = read_run(tmp_path / "run").ranks[0].thread("main")
    assert len(original) > MAX_RECORDS
    keep(rank_of(tmp_path / "run"), tmp_path / "run")
    copy = kept(tmp_path / "run").thread("main")
    assert len(copy) == MAX_RECORDS + 1  # the segment's first record is its clock
    assert copy[1:].tobytes() == original[-MAX_RECORDS:].tobytes()
    assert copy[0]["kind"] == Kind.CLOCK


def test_a_fresh_segment_is_completed_from_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch, steps=9, spans=10, capacity=64)
    files = sorted(rank_of(tmp_path / "run").glob("main-*.seg"))
    assert len(files) > 1
    keep(rank_of(tmp_path / "run"), tmp_path / "run")
    originals = [segment.records for segment in read_run(tmp_path / "run").ranks[0].segments]
    assert kept(tmp_path / "run").thread("main").tobytes() == np.concatenate(originals[-2:]).tobytes()


@pytest.fixture
def two_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A rank whose second segment has just been begun."""
    record(tmp_path / "run", monkeypatch, steps=10)
    directory = rank_of(tmp_path / "run")
    (path,) = directory.glob("main-*.seg")
    records = read_segment(path).records
    path.chmod(0o600)
    path.write_bytes(segment_content(records[:-3]))
    (directory / "main-00001.seg").write_bytes(segment_content(records[-3:]))
    return directory


def main_of(copy: RankCopy | None, directory: Path) -> SegmentRecords:
    """The training thread of a copy, as a witness reads it."""
    assert copy is not None
    path = directory / "main-00000.seg"
    path.write_bytes(copy.files[path.name])
    return read_segment(path)


def test_a_fresh_segment_is_completed_from_a_compacted_one(two_segments: Path, tmp_path: Path) -> None:
    before = main_of(RankCopier(two_segments, rank=0).changed(), tmp_path)
    compact(two_segments / "main-00000.seg")
    copier = RankCopier(two_segments, rank=0)
    after = main_of(copier.changed(), tmp_path)
    assert len(after.records) > 3
    assert after.records.tobytes() == before.records.tobytes()
    assert not before.cut
    assert not after.cut
    (two_segments / "main-00001.seg").unlink()
    compacted = main_of(copier.changed(), tmp_path)  # the thread has ended
    assert compacted.records.tobytes() == before.records[:-3].tobytes()


def test_of_a_compacted_segment_only_the_newest_records_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "run", monkeypatch, steps=20, spans=MAX_RECORDS // 10)
    directory = rank_of(tmp_path / "run")
    before = main_of(RankCopier(directory, rank=0).changed(), tmp_path)
    compact(directory / "main-00000.seg")
    after = main_of(RankCopier(directory, rank=0).changed(), tmp_path)
    assert len(before.records) == MAX_RECORDS + 1
    assert after.records.tobytes() == before.records.tobytes()
    assert before.cut
    assert after.cut


@pytest.mark.parametrize("lost", ["removed", "thinned"])
def test_a_copy_without_the_segment_before_claims_less(two_segments: Path, tmp_path: Path, lost: str) -> None:
    path = two_segments / "main-00000.seg"
    if lost == "thinned":
        compact(path)
        thin(path.with_suffix(".parquet"), odd_steps=())
    else:
        path.unlink()
    kept = main_of(RankCopier(two_segments, rank=0).changed(), tmp_path)
    assert kept.cut
    assert len(kept.records) == 3
    assert held_since_ns([kept]) >= int(kept.records["start_ns"].min())


def test_an_unchanged_rank_is_not_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch)
    copier = RankCopier(rank_of(tmp_path / "run"), rank=0)
    assert copier.changed() is not None
    assert copier.changed() is None


def look(at_ns: int, stack: str = "") -> Look:
    return Look(at_ns=at_ns, state="S", stack=stack)


def test_what_the_agent_saw_is_copied_once_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest look with stacks, and those after it, with torch's flight recorder."""
    record(tmp_path / "run", monkeypatch)
    own = rank_of(tmp_path / "run")
    copier = RankCopier(own, rank=0)
    assert copier.seen() is None
    for seen in (look(1, "old"), look(2, "stack"), look(3)):
        append_look(own, seen)
    (own / FLIGHT_FILE).write_text(json.dumps({"at_ns": 5, "entries": [], "groups": {"0": [0, 1]}}))
    copy = copier.seen()
    assert copy is not None
    keep(own, tmp_path / "run")
    Witness(attempt_directory(tmp_path / "run", 0), host=A).keep(OF_B, copy_message(copy))
    assert copier.seen() is None
    (witnessed,) = read_run(tmp_path / "run").witnessed[0].ranks
    assert [each for each in witnessed.looks if each.by_agent] == [
        replace(look(2, "stack"), by_agent=True),
        replace(look(3), by_agent=True),
    ]
    assert witnessed.flight is not None
    assert witnessed.flight.read() == Flight(at_ns=5, entries=(), groups={"0": (0, 1)})


def test_looks_and_flights_beyond_their_bounds_are_left_out(tmp_path: Path) -> None:
    append_look(tmp_path, look(1, "x" * MAX_LOOKS_BYTES))
    append_look(tmp_path, look(2))
    (tmp_path / FLIGHT_FILE).write_bytes(b"x" * (MAX_FLIGHT_BYTES + 1))
    copy = RankCopier(tmp_path, rank=0).seen()
    assert copy is not None
    assert set(copy.files) == {LOOKS_FILE}
    (tmp_path / LOOKS_FILE).write_bytes(copy.files[LOOKS_FILE])
    assert [seen.at_ns for seen in read_looks(tmp_path)] == [2]


@pytest.mark.parametrize(
    ("flight", "carried"),
    [
        (b"1" * MAX_FLIGHT_BYTES, [LOOKS_FILE, FLIGHT_FILE]),
        (np.random.default_rng(0).bytes(MAX_FLIGHT_BYTES), [LOOKS_FILE]),
    ],
)
def test_a_flight_recorder_that_hardly_shrinks_is_left_out(flight: bytes, carried: list[str]) -> None:
    message = copy_message(RankCopy(rank=3, files={LOOKS_FILE: b"looks", FLIGHT_FILE: flight}))
    assert len(message.payload) <= MAX_PACKED_BYTES < MAX_MESSAGE_BYTES
    assert list(read_copy(message).files) == carried


def test_a_torn_copy_is_read_up_to_the_tear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch)
    keep(rank_of(tmp_path / "run"), tmp_path / "run")
    whole = kept(tmp_path / "run").thread("main")
    directory = witness_directory(attempt_directory(tmp_path / "run", 0), B, witness=A) / "rank-00000"
    content = (directory / "main-00000.seg").read_bytes()
    (directory / "main-00000.seg").write_bytes(content[: HEADER_BYTES + 56 * 3 + 20])
    torn = kept(tmp_path / "run")
    assert torn.thread("main").tobytes() == whole[:3].tobytes()
    assert "cut off in the middle of a record" in torn.problems[0]
    (directory / "rank.json").write_bytes(b'{"version"')
    assert read_run(tmp_path / "run").witnessed[0].ranks == ()


def test_a_redacted_copy_of_the_run_has_no_witness_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch)
    keep(rank_of(tmp_path / "run"), tmp_path / "run")
    redact(tmp_path / "run", tmp_path / "shared")
    assert read_run(tmp_path / "shared").witnessed == ()
    assert not list(tmp_path.glob("shared/**/witness"))


def test_a_rank_without_records_or_card_is_not_copied(tmp_path: Path) -> None:
    assert RankCopier(tmp_path, rank=0).changed() is None
