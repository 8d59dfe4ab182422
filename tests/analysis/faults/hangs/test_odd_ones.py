"""Deadlocks whose culprit the ranks outside of the cycle show: by collectives, or by the tags of messages."""

import pytest

from tests.analysis.faults.hangs.test_stops import LAST_NS, MS, NUM_STEPS, WAITING, looked, only, steps, waiting
from tests.timeline.build import collective, group, message, rank, stall
from traincope.analysis import HangKind
from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.hangs.hang import Differs
from traincope.events import OPEN
from traincope.store import RankRecords


def shares(number: int, *, first: bool, second: bool = True, name: str = "all_gather") -> RankRecords:
    """One of four ranks. After step 4 the `first` collective is in a pair, the `second` in the world's group. The
    last one does not end.
    """
    pair = (0, 1) if number < 2 else (2, 3)
    groups = [group("dp", 0, 1, 2, 3), group("pair", *pair)]
    rows = steps()
    if first and second:
        at_ns = LAST_NS - 2 * MS
        rows.append(collective(at_ns, at_ns + MS, name=name, group=1, sequence=0, at=NUM_STEPS))
    rows += waiting() if second else waiting(on=1, sequence=0, name=name)
    return looked(rank(number, *rows, groups=groups, ending=None), WAITING)


def test_the_rank_that_leaves_out_what_the_other_groups_did_is_named() -> None:
    """Ranks 0 to 2 gather in pairs. Rank 3 goes on, and rank 2 waits for it: by habit rank 2 is the odd one."""
    hang = only(*(shares(number, first=True, second=number != 2) for number in range(3)), shares(3, first=False))
    assert (hang.kind, hang.culprits, hang.differs) == (HangKind.MISMATCH, (3,), Differs.OPERATION)
    assert (hang.victims, hang.confidence) == ((0, 1, 2), MEDIUM)
    assert hang.evidence.endswith(
        "since the last collective that all ranks completed, ranks 0-2 issued all_gather in groups of 2, and rank 3 "
        "did not"
    )


def test_the_rank_that_alone_begins_a_collective_of_its_group_is_named() -> None:
    """Only rank 2 gathers."""
    hang = only(*(shares(number, first=number == 2, second=number != 2) for number in range(4)))
    assert (hang.kind, hang.culprits) == (HangKind.MISMATCH, (2,))


@pytest.mark.parametrize("others", [("broadcast", "broadcast"), ("all_gather", "")])
def test_other_ranks_that_did_not_do_the_same_decide_nothing(others: tuple[str, str]) -> None:
    """Ranks 0 and 1 issued what neither 2 nor 3 did, or not the same: the habit of ranks 2 and 3 decides."""
    outside = [shares(number, first=bool(name), name=name) for number, name in enumerate(others)]
    hang = only(*outside, shares(2, first=True, second=False), shares(3, first=False))
    assert "completed" not in hang.evidence


def end_of(number: int, name: str, *, peer: int, tag: int) -> RankRecords:
    last = message(name, LAST_NS, OPEN, peer=peer, tag=tag, sequence=0, at=NUM_STEPS)
    rows = [*steps(), last, stall(last, last.start_ns, OPEN)]
    return looked(rank(number, *rows, groups=[group("pp", 0, 1, 2)], ending=None), WAITING)


def test_both_ends_of_a_message_have_different_tags_and_a_third_rank_decides() -> None:
    ends = [end_of(0, "send", peer=1, tag=8), end_of(1, "recv", peer=0, tag=10), end_of(2, "recv", peer=1, tag=8)]
    hang = only(*ends)
    assert (hang.kind, hang.culprits, hang.victims, hang.differs) == (HangKind.MISMATCH, (1,), (0, 2), Differs.TAG)
    assert hang.evidence.endswith(
        "both ends of one message have different tags: rank 0 has 8 and rank 1 has 10; rank 2 waits for 8 too"
    )


@pytest.mark.parametrize("tag", [10, 12])
def test_without_a_majority_both_ends_are_named(tag: int) -> None:
    others = [] if tag == 12 else [end_of(2, "recv", peer=1, tag=11)]
    hang = only(end_of(0, "send", peer=1, tag=8), end_of(1, "recv", peer=0, tag=tag), *others)
    assert (hang.kind, hang.culprits) == (HangKind.DEADLOCK, (0, 1))
    assert hang.evidence.endswith(f"different tags: rank 0 has 8 and rank 1 has {tag}")


def test_equal_tags_are_no_difference() -> None:
    """Two receive from each other: each message of a pipeline has its own tag."""
    hang = only(end_of(0, "recv", peer=1, tag=8), end_of(1, "recv", peer=0, tag=9))
    assert (hang.kind, hang.culprits) == (HangKind.DEADLOCK, (0, 1))
    assert "tag" not in hang.evidence
