"""Successive copies of ranks add up to histories, and a mismatch between hosts is kept with both sides."""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns

import numpy as np
import pytest

from tests.analysis.faults.hangs.test_mismatches import ALIKE, BYTES, NUM_STEPS, Form, training
from tests.timeline.build import collective, group, message, rank, stall, step
from traincope.events import Kind
from traincope.live.peers.comparing import Comparer
from traincope.live.peers.copies import histories
from traincope.live.peers.copies.copying import RankCopy
from traincope.live.peers.copies.histories import Histories
from traincope.live.peers.copies.witnessing import Witness, copy_message
from traincope.live.peers.links import CpuMeter
from traincope.live.peers.network.members import Member
from traincope.store import RankRecords, read_run
from traincope.store.layout import GROUPS_FILE, NAMES_FILE, RANK_FILE
from traincope.store.segments.segments import segment_content
from traincope.topology import Host

A, B = Host(name="a", boot_id="1"), Host(name="b", boot_id="2")
DP = group("dp", 0, 1, 2)
STEP_NS = 100_000_000
CARD = {"version": 3, "coords": {}, "pid": 1, "started_wall_ns": 0}
RUN = {
    "version": 3,
    "id": "r",
    "world_size": 3,
    "mesh": {},
    "started_wall_ns": 0,
    "versions": {},
    "command": "",
    "settings": {},
}
ODD: Mapping[int, Sequence[Form]] = {3: (("broadcast", BYTES), ALIKE[1])}


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    (tmp_path / "attempt-000").mkdir()
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    return tmp_path / "attempt-000"


def copy(records: RankRecords, *, host: Host, since_ns: int = 0, until_ns: int = NUM_STEPS * STEP_NS) -> RankCopy:
    """A copy of the rank's records in between."""
    main = records.segments[0].records
    held = main[(main["end_ns"] >= since_ns) & (main["start_ns"] < until_ns)]
    card = {**CARD, "rank": records.rank, "host": host.name, "boot_id": host.boot_id}
    names = [[number, name] for number, name in enumerate(records.names)]
    groups = [[g.number, {"key": g.key, "axis": g.axis, "rule": g.rule, "ranks": g.ranks}] for g in records.groups]
    files = {RANK_FILE: json.dumps(card).encode(), NAMES_FILE: lines(names), GROUPS_FILE: lines(groups)}
    return RankCopy(rank=records.rank, files={**files, "main-00000.seg": segment_content(held)})


def lines(values: Sequence[object]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def ranks(odd: Mapping[int, Sequence[Form]] = ODD) -> list[tuple[RankRecords, Host]]:
    """Ranks 0 and 1 of host a, and rank 2 of host b."""
    return [
        (training(number, odd if number == 2 else None, groups=[DP]), B if number == 2 else A) for number in range(3)
    ]


def comparer_of(attempt: Path) -> tuple[Comparer, Histories]:
    """The comparer of host a, and its histories."""
    known = Histories()
    return Comparer(attempt, known, host=A), known


def add_all(known: Histories, *, odd: Mapping[int, Sequence[Form]] = ODD) -> None:
    """Copies of 250 ms every 150 ms."""
    for until_ns in range(STEP_NS * 5 // 2, NUM_STEPS * STEP_NS + 1, STEP_NS * 3 // 2):
        for records, host in ranks(odd):
            known.add(copy(records, host=host, since_ns=until_ns - STEP_NS * 5 // 2, until_ns=until_ns), host=host)


def kept(attempt: Path) -> tuple[RankRecords, ...]:
    """Findings of a report of the run directory. Its own rank 0 has records."""
    copy(ranks()[0][0], host=A).write(attempt / "rank-00000")
    (compared,) = read_run(attempt.parent).compared
    return compared


def test_copies_that_overlap_add_up(attempt: Path) -> None:
    comparer, known = comparer_of(attempt)
    add_all(known)
    comparer.compare()
    assert [records.rank for records in kept(attempt)] == [0, 1, 2]
    for records, (original, _) in zip(kept(attempt), ranks(), strict=True):
        main = original.segments[0].records
        assert records.thread("main").tobytes() == main[main["start_ns"] < 11 * STEP_NS // 2].tobytes()
        assert (records.names, records.groups) == (original.names, original.groups)
        assert records.problems == ()


def test_equal_collectives_and_mismatches_of_one_host_are_not_kept(attempt: Path) -> None:
    comparer, known = comparer_of(attempt)
    add_all(known, odd={})
    comparer.compare()
    alone, known = comparer_of(attempt)
    for records, _ in ranks():
        known.add(copy(records, host=A), host=A)
    assert not alone.needs_copies
    alone.compare()
    assert not (attempt / "compared").exists()


def test_the_first_mismatch_is_the_last_that_is_compared(attempt: Path) -> None:
    comparer, known = comparer_of(attempt)
    assert not comparer.needs_copies
    known.add(copy(ranks()[2][0], host=B), host=B)
    assert comparer.needs_copies
    add_all(known)
    comparer.compare()
    assert not comparer.needs_copies
    before = sorted(path.stat().st_mtime_ns for path in attempt.rglob("*"))
    add_all(known)
    comparer.compare()
    assert sorted(path.stat().st_mtime_ns for path in attempt.rglob("*")) == before
    assert not Comparer(attempt, known, host=A).needs_copies  # a restarted agent


def test_missing_copies_begin_a_new_history(attempt: Path) -> None:
    """Nothing is known of step 2: of the steps before it nothing is compared."""
    comparer, known = comparer_of(attempt)
    for since, until in ((0, 2), (3, 6)):
        for records, host in ranks({1: ODD[3], 4: ODD[3]}):
            known.add(copy(records, host=host, since_ns=since * STEP_NS + 1, until_ns=until * STEP_NS), host=host)
    comparer.compare()
    for records in kept(attempt):
        main = records.thread("main")
        assert set(np.unique(main["step"]).tolist()) <= {3, 4, 5}


def test_a_history_is_bounded(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MAX_RECORDS", 10)
    comparer, known = comparer_of(attempt)
    add_all(known, odd={5: ODD[3]})
    for records, host in ranks({5: ODD[3]}):
        known.add(copy(records, host=host, since_ns=4 * STEP_NS, until_ns=6 * STEP_NS), host=host)
    comparer.compare()
    assert [len(records.thread("main")) for records in kept(attempt)] == [10, 10, 10]


def test_histories_are_those_of_the_ranks_and_hosts_that_their_cards_name(attempt: Path) -> None:
    _, known = comparer_of(attempt)
    before = monotonic_ns()
    for records, host in ranks():
        known.add(copy(records, host=host), host=host)
    assert known.hosts == {A, B}
    assert known.num_copies == 3
    assert all(before <= each.arrived_ns <= monotonic_ns() for each in known.ranks().values())
    stranger = copy(ranks()[0][0], host=A)
    known.add(replace(stranger, rank=7), host=B)  # its card names rank 0
    known.add(copy(ranks()[1][0], host=A), host=B)  # its card names host a
    assert {rank: each.records.info.host for rank, each in known.ranks().items()} == {0: A, 1: A, 2: B}


def test_stalls_for_messages_are_kept_and_other_stalls_are_not(attempt: Path) -> None:
    _, known = comparer_of(attempt)
    sent, joined = message("send", 10, 20, peer=1), collective(30, 40)
    records = rank(0, step(0, 0, 50), sent, joined, stall(sent, 11, 19), stall(joined, 31, 39), groups=[DP])
    known.add(copy(records, host=A), host=A)
    main = known.ranks()[0].records.thread("main")
    assert main["start_ns"][main["kind"] == Kind.STALL].tolist() == [11]


def test_a_meter_adds_the_cpu_time_of_threads_and_begins_anew() -> None:
    meter = CpuMeter()

    def work() -> None:
        with meter.running():
            sum(range(100_000))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meter.take() > 0
    assert meter.take() == 0


@pytest.mark.parametrize(
    "damage",
    [{RANK_FILE: b"{"}, {RANK_FILE: b"{}"}, {"main-00000.seg": b"x"}, {NAMES_FILE: b"[3"}, {GROUPS_FILE: b"[0, 3]\n"}],
)
def test_a_damaged_copy_harms_nothing(attempt: Path, damage: Mapping[str, bytes]) -> None:
    comparer, known = comparer_of(attempt)
    witness = Witness(attempt, host=A, histories=known)
    for records, host in ranks():
        sound = copy(records, host=host)
        if host == A:
            known.add(sound, host=A)
        else:
            damaged = replace(sound, files={**sound.files, **damage})
            witness.keep(Member(host=B, address="127.0.0.1", port=1), copy_message(damaged))
    comparer.compare()
