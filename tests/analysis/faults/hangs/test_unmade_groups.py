"""Process groups that not all ranks made: the rank, the line that it left out or called alone, and what stays open."""

from dataclasses import replace

import pytest

from tests.timeline.build import Row, collective, group, rank, run, step
from traincope.analysis import Finding, Hang, HangKind, analyze
from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.hangs.hang import Differs
from traincope.events import NEW_GROUP, OPEN, Flag, Kind
from traincope.store import Look, RankRecords
from traincope.timeline import build_timeline

MS = 1_000_000
S = 1_000 * MS
STEPS = 5
STOP_NS = STEPS * 100 * MS
WORLD = group("world", 0, 1, 2, 3)
EXPERTS, EVALUATION = "train.py:35 (group_of)", "train.py:51 (evaluate)"


def new_group(site: str, number: int, *, at: int, flags: int = 0, until_ns: int | None = None) -> Row:
    """The call of a step. It takes 1 ms, or ends at this time."""
    begin = at * 100 * MS + 10 * MS * number
    return Row(
        kind=Kind.SPAN,
        start_ns=begin,
        end_ns=begin + MS if until_ns is None else until_ns,
        name=f"{NEW_GROUP} at {site}",
        sequence=number,
        step=at,
        flags=flags,
    )


def waits(site: str, number: int, *, failed: bool) -> Row:
    """A call in the last step that does not end, or fails after 10 s."""
    if failed:
        return new_group(site, number, at=STEPS, flags=Flag.RAISED, until_ns=STOP_NS + 10 * S)
    return new_group(site, number, at=STEPS, until_ns=OPEN)


def ranked(number: int, *rows: Row, failed: bool) -> RankRecords:
    steps = [step(at, at * 100 * MS, (at + 1) * 100 * MS, flags=Flag.DETAILED) for at in range(STEPS)]
    opened = step(STEPS, STOP_NS, OPEN, flags=Flag.DETAILED)
    ending = "DistStoreError" if failed else None
    records = rank(number, *steps, opened, *rows, groups=[WORLD], ending=ending)
    return records if failed else replace(records, looks=(Look(at_ns=STOP_NS + 30 * S, state="S", by_agent=True),))


def experts_without(rank_left_out: int, *, failed: bool, ranks: int = 4) -> list[RankRecords]:
    """A group of experts in step 2 that one rank does not make, and the next group of all in step 5."""
    made = new_group(EXPERTS, 1, at=2)
    return [
        ranked(number, made, waits(EVALUATION, 2, failed=failed), failed=failed)
        if number != rank_left_out
        else ranked(number, waits(EVALUATION, 1, failed=failed), failed=failed)
        for number in range(ranks)
    ]


def hangs(*ranks: RankRecords) -> tuple[Hang, ...]:
    return analyze(build_timeline(run(*ranks))).hangs


@pytest.mark.parametrize("failed", [False, True], ids=["waits", "timed out"])
def test_the_rank_that_did_not_make_a_group_is_the_culprit(*, failed: bool) -> None:
    (hang,) = hangs(*experts_without(2, failed=failed))
    assert (hang.kind, hang.differs, hang.culprits, hang.victims) == (
        HangKind.MISMATCH,
        Differs.GROUPS,
        (2,),
        (0, 1, 3),
    )
    assert (hang.step, hang.call_site, hang.confidence) == (2, "train.py:51", HIGH)
    assert hang.lasted_ns == (10 if failed else 30) * S - 20 * MS
    assert hang.evidence == (
        "rank 2 did not call new_group at train.py:35 (group_of) as the others in step 2: torch names a group by how "
        "many a rank has made, so these ranks wait under different names; ranks 0-3 waited in new_group at train.py:51 "
        "(evaluate)"
    )


def first_finding(*ranks: RankRecords) -> Finding:
    return analyze(build_timeline(run(*ranks))).verdict[0]


def test_the_verdict_begins_with_it_and_says_how_groups_are_made() -> None:
    finding = first_finding(*experts_without(2, failed=False))
    assert (finding.kind, finding.ranks, finding.steps) == ("mismatch", (2,), (2,))
    assert finding.advice.startswith("Call new_group for each group on all ranks, also on those that are no members")


def test_a_rank_that_makes_a_group_alone_is_the_culprit() -> None:
    alone = [ranked(0, new_group(EXPERTS, 1, at=2), waits(EVALUATION, 2, failed=False), failed=False)]
    others = [ranked(number, waits(EVALUATION, 1, failed=False), failed=False) for number in (1, 2, 3)]
    (hang,) = hangs(*alone, *others)
    assert (hang.culprits, hang.step, hang.confidence) == ((0,), 2, HIGH)
    assert "rank 0 called new_group at train.py:35 (group_of) in step 2, and the others did not" in hang.evidence


def test_a_rank_that_waits_in_a_collective_instead_is_the_culprit() -> None:
    others = [ranked(number, waits(EVALUATION, 1, failed=False), failed=False) for number in (0, 1, 3)]
    call = collective(STOP_NS + 10 * MS, OPEN, name="all_reduce", at=STEPS)
    (hang,) = hangs(*others[:2], ranked(2, call, failed=False), others[2])
    assert (hang.culprits, hang.confidence) == ((2,), MEDIUM)
    assert "rank 2 did not call new_group at train.py:51 (evaluate) as the others in step 5" in hang.evidence


def test_an_end_from_outside_is_no_stop() -> None:
    """Ctrl-C while the job makes its groups: one rank has not come to its call yet."""
    others = [ranked(number, waits(EVALUATION, 1, failed=False), failed=False) for number in (0, 1, 3)]
    late = ranked(2, collective(STOP_NS + 10 * MS, OPEN, name="all_reduce", at=STEPS), failed=False)
    ranks = [
        replace(each, info=replace(each.info, ending="KeyboardInterrupt"), looks=())
        for each in (*others[:2], late, others[2])
    ]
    assert not [hang for hang in hangs(*ranks) if hang.culprits]


def test_of_two_ranks_none_is_the_culprit() -> None:
    (hang,) = hangs(*experts_without(1, failed=False, ranks=2))
    assert (hang.culprits, hang.suspects, hang.confidence) == ((), (0, 1), UNKNOWN)
    assert hang.evidence.startswith("rank 1 did not call new_group at train.py:35 (group_of) as the others in step 2")


def test_a_rank_that_is_elsewhere_is_not_judged_by_its_groups() -> None:
    """It may come to the call yet: where it stands is the answer."""
    others = [ranked(number, waits(EVALUATION, 1, failed=False), failed=False) for number in (0, 1, 3)]
    assert not [hang for hang in hangs(*others, ranked(2, failed=False)) if hang.differs is Differs.GROUPS]


def test_equal_numbers_and_a_call_that_others_completed_show_nothing() -> None:
    equal = [ranked(number, waits(EVALUATION, 1, failed=False), failed=False) for number in range(4)]
    assert not [hang for hang in hangs(*equal) if hang.culprits]
    later = [
        ranked(number, new_group(EXPERTS, 1, at=2), waits(EVALUATION, 2, failed=False), failed=False)
        for number in (0, 1, 3)
    ]
    slow = ranked(2, waits(EXPERTS, 1, failed=False), failed=False)
    assert not [hang for hang in hangs(*later, slow) if hang.culprits]
