"""Hangs in steps without recorded collectives, by torch's flight recorder: runs made by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from tests.analysis.faults.hangs.test_stops import (
    FAULTY,
    IN_BACKWARD,
    LAST_NS,
    NUM_STEPS,
    SEEN_NS,
    STOP_NS,
    WAITING,
    looked,
    only,
    steps,
)
from tests.timeline.build import Row, clock, group, phase, rank
from traincope.analysis import Hang, HangKind
from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.events import Phase
from traincope.store import RankRecords
from traincope.store.job.flight import Flight, FlightEntry

MS = 1_000_000
STEP_NS = 100 * MS
Issued = tuple[str, str, int]
"""Group, operation, elements."""
HABIT: Sequence[Issued] = (("0", "all_reduce", 64), ("0", "all_reduce", 8))


def flight(
    size: int, last: Sequence[Issued], *, complete: int, others: Mapping[int, Sequence[Issued]] | None = None
) -> Flight:
    """The habit in each step, or `others`; then `last` in the open step, of which the first `complete` are complete."""
    entries: list[FlightEntry] = []
    counted: dict[str, int] = {}
    for at in range(NUM_STEPS + 1):
        issued = last if at == NUM_STEPS else (others or {}).get(at, HABIT)
        for place, (name, operation, elements) in enumerate(issued):
            counted[name] = counted.get(name, 0) + 1
            entries.append(
                FlightEntry(
                    group=name,
                    sequence=counted[name],
                    operation=operation,
                    dtype="Float",
                    num_elements=elements,
                    complete=at < NUM_STEPS or place < complete,
                    created_wall_ns=at * STEP_NS + (1 + place) * MS,
                )
            )
    world = tuple(range(size))
    return Flight(at_ns=SEEN_NS, entries=tuple(entries), groups={"0": world, "7": world})


@dataclass(frozen=True)
class Recorded:
    """In place of the file."""

    flight: Flight

    def read(self) -> Flight:
        return self.flight


def light(number: int, stack: str, *, of: Flight | None, size: int = 2, clocks: Sequence[Row] = ()) -> RankRecords:
    """A rank between two windows."""
    rows = [*steps(detailed=False), phase(Phase.FORWARD, LAST_NS, LAST_NS + 1, at=NUM_STEPS), *clocks]
    made = rank(number, *rows, groups=[group("dp", *range(size), key="0")], ending=None)
    return replace(looked(made, stack), flight=None if of is None else Recorded(of))


def waits(size: int = 2, *, joined: int = 1) -> Flight:
    """The rank joined so many collectives of its last step, and the last of them does not complete."""
    return flight(size, HABIT[:joined], complete=joined - 1)


def test_the_rank_that_did_not_join_is_named_with_high_confidence() -> None:
    """By stacks alone the confidence would be medium, and the collective unknown."""
    hang = only(light(0, IN_BACKWARD, of=waits()), light(1, FAULTY, of=flight(2, (), complete=0)))
    assert (hang.kind, hang.culprits, hang.victims) == (HangKind.STUCK, (1,), (0,))
    assert (hang.confidence, hang.axis, hang.collective, hang.step) == (HIGH, "dp", "all_reduce", NUM_STEPS)


def test_a_rank_that_gave_no_answer_is_named_by_the_waits_of_the_others_and_its_stack() -> None:
    """Its C code holds Python's lock. Two others stand outside of communication too, and so its stack is not enough."""
    ranks = [light(0, WAITING, of=waits(3), size=3), light(1, FAULTY, of=None, size=3)]
    hang = only(*ranks, light(2, FAULTY, of=waits(3), size=3))
    assert (hang.kind, hang.culprits, hang.confidence) == (HangKind.STUCK, (1,), MEDIUM)
    assert hang.collective == "all_reduce"


def test_two_groups_in_opposite_order_are_a_deadlock() -> None:
    made = [flight(2, ((name, "barrier", 0),), complete=0) for name in ("7", "8")]
    ranks = [replace(of, groups=dict.fromkeys(("0", "7", "8"), (0, 1))) for of in made]
    hang = only(*(light(number, WAITING, of=of) for number, of in enumerate(ranks)))
    assert (hang.kind, hang.culprits, hang.confidence) == (HangKind.DEADLOCK, (0, 1), HIGH)
    assert "rank 0 waited for rank 1 in barrier on group 7" in hang.evidence


@pytest.mark.parametrize("size", [2, 4])
def test_another_collective_is_a_mismatch_with_its_step(size: int) -> None:
    odd = flight(size, (("0", "broadcast", 1),), complete=0)
    ranks = [light(number, WAITING, of=odd if number == 1 else waits(size), size=size) for number in range(size)]
    hang = only(*ranks)
    assert (hang.kind, hang.culprits, hang.step) == (HangKind.MISMATCH, (1,), NUM_STEPS)
    assert hang.confidence == (HIGH if size == 4 else MEDIUM)
    assert "issued broadcast of 4 bytes in step 5" in hang.evidence
    assert hang.evidence.startswith("collective 11 on dp: ")


def test_a_skipped_collective_is_found_in_an_earlier_step() -> None:
    """From step 2 on, rank 1 is one collective behind: its last one waits for a partner that comes no more."""
    behind = flight(3, HABIT[:1], complete=0, others={2: HABIT[:1]})
    ranks = [light(number, WAITING, of=behind if number == 1 else waits(3), size=3) for number in range(3)]
    hang = only(*ranks)
    assert (hang.kind, hang.culprits) == (HangKind.MISMATCH, (1,))


def test_a_wall_clock_that_is_set_back_during_the_run_moves_no_collective_to_another_step() -> None:
    """torch's entries have wall times. In the middle of step 2 the clock of rank 1's host goes back by a minute."""
    set_ns, back_ns = 2 * STEP_NS + 50 * MS, 60_000 * MS

    def on_wall(entry: FlightEntry) -> FlightEntry:
        at_ns = entry.created_wall_ns
        return replace(entry, created_wall_ns=at_ns + 2 * back_ns - (back_ns if at_ns > set_ns else 0))

    habit = {step: HABIT[:1] if step == 3 else HABIT for step in range(NUM_STEPS)}
    made = [flight(3, HABIT[:1], complete=0, others=habit if number == 1 else None) for number in range(3)]
    made = [replace(of, entries=tuple(map(on_wall, of.entries))) for of in made]
    clocks = [clock(0, 2 * back_ns), clock(set_ns, set_ns + back_ns)]
    hang = only(*(light(number, WAITING, of=of, size=3, clocks=clocks) for number, of in enumerate(made)))
    assert (hang.kind, hang.culprits, hang.step) == (HangKind.MISMATCH, (1,), 3)


def test_an_answer_from_before_the_last_progress_is_not_used() -> None:
    old = replace(waits(), at_ns=STOP_NS - STEP_NS)
    hang = only(light(0, WAITING, of=old), light(1, WAITING, of=old))
    assert (hang.kind, hang.confidence) == (HangKind.UNKNOWN, UNKNOWN)


def test_a_collective_that_all_joined_names_no_rank() -> None:
    hang: Hang = only(light(0, WAITING, of=waits()), light(1, WAITING, of=waits()))
    assert hang.culprits == ()


def test_of_eight_ranks_only_the_first_has_another_size() -> None:
    """torch's own analyzer takes rank 0 as the reference here, and blames the seven others."""
    odd = flight(8, (("0", "all_reduce", 32),), complete=0)
    ranks = [light(number, WAITING, of=odd if number == 0 else waits(8), size=8) for number in range(8)]
    hang = only(*ranks)
    assert (hang.culprits, hang.confidence) == ((0,), HIGH)


def test_of_eight_ranks_with_unequal_numbers_of_records_only_one_is_missing() -> None:
    """Later ranks issued more in a group of their own, as stages of a pipeline do. torch's own analyzer aligns all
    ranks by the number of records, and blames ranks 4 to 7.
    """

    def staged(number: int) -> Flight:
        habit = [*HABIT, *[("7", "all_gather", 4)] * (2 if number >= 4 else 0)]
        others = dict.fromkeys(range(NUM_STEPS), habit)
        if number == 5:
            return flight(8, (), complete=0, others=others)
        return flight(8, HABIT[:1], complete=0, others=others)

    ranks = []
    for number in range(8):
        made = staged(number)
        made = replace(made, groups={**made.groups, "7": (4, 5, 6, 7)})
        ranks.append(light(number, FAULTY if number == 5 else WAITING, of=made, size=8))
    hang = only(*ranks)
    assert (hang.kind, hang.culprits) == (HangKind.STUCK, (5,))


def test_a_rank_of_a_dead_host_that_left_no_answer_is_a_suspect_and_the_others_are_cleared() -> None:
    """torch's own analyzer fails without its dump, or decides nothing."""
    gone = replace(light(3, "", of=None, size=4), looks=())
    hang = only(*(light(number, WAITING, of=waits(4), size=4) for number in range(3)), gone)
    assert (hang.culprits, hang.suspects, hang.confidence) == ((), (3,), UNKNOWN)
