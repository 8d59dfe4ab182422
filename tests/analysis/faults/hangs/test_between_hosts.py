"""Ranks of another host, of which only witness copies are known: who is named, and what the copies do not show."""

from dataclasses import replace

import pytest

from tests.analysis.faults.hangs.test_mismatches import ALIKE, BYTES, Form, dp, training
from tests.analysis.faults.hangs.test_stops import FAULTY, SEEN_NS, STOP_NS, looked, stuck, victim
from tests.timeline.build import group, rank, run, step
from traincope.analysis import FindingKind, Hang, HangKind, analyze
from traincope.analysis.confidence import HIGH, UNKNOWN
from traincope.analysis.faults.hangs.evidence.calls import UNPLACED, latest_calls
from traincope.events import OPEN
from traincope.store import RankRecords, RunRecords
from traincope.store.job.witness import Heard
from traincope.store.reading import WitnessedHost
from traincope.timeline import build_timeline, with_copies
from traincope.topology import Host

A, B = Host(name="host-a", boot_id="a"), Host(name="host-b", boot_id="b")
ALL = group("world", 0, 1, 2, 3)


def on(host: Host, records: RankRecords) -> RankRecords:
    return replace(records, info=replace(records.info, host=host))


def job(
    *own: RankRecords, copies: tuple[RankRecords, ...], compared: tuple[RankRecords, ...] = (), silent_ns: int = 0
) -> RunRecords:
    """The run directory of host a: its own ranks, and copies of those of host b."""
    heard = Heard(host=B, witness=A, heard_wall_ns=SEEN_NS, silent_ns=silent_ns)
    witnessed = WitnessedHost(heard=heard, ranks=tuple(on(B, copy) for copy in copies))
    recorded = run(*(on(A, records) for records in own), world_size=4)
    return replace(recorded, witnessed=(witnessed,), compared=(compared,) if compared else ())


def only(recorded: RunRecords) -> Hang:
    (hang,) = analyze(build_timeline(recorded)).hangs
    return hang


def test_a_rank_of_another_host_is_named_by_the_looks_of_its_agent() -> None:
    recorded = job(victim(0, ALL), victim(1, ALL), copies=(victim(2, ALL), stuck(3, ALL)))
    analysis = analyze(build_timeline(recorded))
    (hang,) = analysis.hangs
    assert (hang.kind, hang.culprits, hang.victims, hang.host) == (HangKind.STUCK, (3,), (0, 1, 2), "host-b")
    assert (hang.call_site, hang.confidence) == ("train.py:9", HIGH)
    assert analysis.verdict[0].advice.startswith("Look at train.py:9 (process 1003 on host-b).")
    assert [each.rank for each in analysis.ledger.ranks] == [0, 1]  # copies enter no sum


def test_without_a_look_of_its_agent_the_rank_is_only_a_suspect() -> None:
    """The copy may be old: the rank may have joined since."""
    hang = only(job(victim(0, ALL), victim(1, ALL), copies=(victim(2, ALL), replace(stuck(3, ALL), looks=()))))
    assert (hang.kind, hang.culprits, hang.suspects, hang.confidence) == (HangKind.UNKNOWN, (), (3,), UNKNOWN)
    assert hang.evidence.endswith("rank 3 did not join, but no evidence shows whether its process lived")


def test_a_rank_without_a_copy_is_only_a_suspect() -> None:
    hang = only(job(victim(0, ALL), victim(1, ALL), copies=(victim(2, ALL),)))
    assert (hang.kind, hang.culprits, hang.suspects) == (HangKind.UNKNOWN, (), (3,))
    assert hang.evidence.endswith("rank 3 may not have joined, but it left no records")


def test_that_all_ranks_wait_is_not_known_from_copies_without_a_look() -> None:
    waits = tuple(victim(number, ALL) for number in range(4))
    seen = only(job(*waits[:2], copies=waits[2:]))
    assert (seen.kind, seen.culprits, seen.victims) == (HangKind.NONE_COMPLETES, (), (0, 1, 2, 3))
    unseen = only(job(*waits[:2], copies=tuple(replace(copy, looks=()) for copy in waits[2:])))
    assert (unseen.kind, unseen.culprits, unseen.suspects) == (HangKind.UNKNOWN, (), (0, 1, 2, 3))
    assert unseen.evidence.endswith("the records do not show that all of them waited for it")


def test_the_last_records_of_a_lost_host_accuse_no_rank_of_it() -> None:
    pair = group("world", 0, 1, 2)
    copy = looked(rank(2, step(5, STOP_NS, OPEN), groups=[pair], ending=None), FAULTY, at_ns=STOP_NS + 1)
    recorded = job(victim(0, pair), victim(1, pair), copies=(copy,), silent_ns=30_000_000_000)
    hang = only(replace(recorded, info=replace(recorded.info, world_size=3)))
    assert (hang.kind, hang.culprits, hang.suspects) == (HangKind.LOST_HOST, (), (2,))


def test_a_copy_shows_nothing_of_the_time_before_it() -> None:
    """It begins at 250 ms, within step 2: that step's first collective is missing."""
    whole = training(3, groups=dp(4))
    records = whole.segments[0].records
    cut = replace(whole.segments[0], records=records[records["end_ns"] >= 225_000_000])
    recorded = job(*(training(number, groups=dp(4)) for number in range(2)), copies=(replace(whole, segments=(cut,)),))
    calls = latest_calls(with_copies(build_timeline(recorded)))
    held, complete = calls[3], calls[0]
    assert [call.sequence for call in held.calls] == [5, 6, 7, 8, 9, 10, 11]
    assert [call.place for call in held.calls] == [UNPLACED, 0, 1, 0, 1, 0, 1]
    assert [call.place for call in complete.calls][:4] == [0, 1, 0, 1]
    other = group("tp", 0, 3)
    early, late = (
        replace(complete.calls[at], channel=complete.calls[at].channel._replace(group=other.key)) for at in (0, 10)
    )
    assert (held.joined(early), held.joined(late)) == (None, False)


FAULT: dict[int, tuple[Form, Form]] = {3: (("broadcast", BYTES), ALIKE[1])}


def test_a_mismatch_between_hosts_is_found_in_the_copies_that_an_agent_kept() -> None:
    """The copies of now no longer hold step 3."""
    ranks = [
        on(A if number < 2 else B, training(number, FAULT if number == 3 else None, groups=dp(4)))
        for number in range(4)
    ]
    recorded = job(*ranks[:2], copies=(), compared=tuple(ranks))
    analysis = analyze(build_timeline(recorded))
    (hang,) = analysis.hangs
    assert (hang.kind, hang.culprits, hang.step, hang.confidence) == (HangKind.MISMATCH, (3,), 3, HIGH)
    assert (analysis.verdict[0].kind, analysis.verdict[0].ranks) == (FindingKind.MISMATCH, (3,))
    with_all = analyze(build_timeline(run(*ranks))).hangs
    assert [each.evidence for each in with_all] == [hang.evidence]


@pytest.mark.parametrize(("num_unseen", "culprits"), [(0, (2,)), (1, ()), (2, ())])
def test_a_majority_of_the_seen_ranks_may_be_a_minority_of_all(num_unseen: int, culprits: tuple[int, ...]) -> None:
    """Rank 2 disagrees with ranks 0 and 1 from the first step on. The others may agree with rank 2."""
    odd = dict.fromkeys(range(6), (("broadcast", BYTES), ALIKE[1]))
    members = group("dp", *range(3 + num_unseen))
    ranks = [training(number, odd if number == 2 else None, groups=[members]) for number in range(3)]
    (hang,) = analyze(build_timeline(run(*ranks, world_size=3 + num_unseen))).hangs
    assert (hang.kind, hang.culprits) == (HangKind.MISMATCH, culprits)
    assert hang.confidence == (HIGH if culprits else UNKNOWN)
