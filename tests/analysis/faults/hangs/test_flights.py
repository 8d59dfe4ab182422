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
    analysis,
    looked,
    only,
    steps,
    waiting,
)
from tests.timeline.build import Row, clock, collective, group, message, phase, rank, run, stall, step
from traincope.analysis import Hang, HangKind
from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.hangs.aborts import with_aborted
from traincope.analysis.faults.hangs.evidence.calls import latest_calls
from traincope.analysis.faults.hangs.mismatches import Mismatch
from traincope.events import OPEN, Kind, Phase
from traincope.store import RankRecords
from traincope.store.job.flight import Flight, FlightEntry
from traincope.timeline import build_timeline

MS = 1_000_000
STEP_NS = 100 * MS
OTHER_THREAD = WAITING.replace("Current thread", "Thread")
"""Stacks that a thread without Python wrote: the training waits in all_reduce."""
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


def light(number: int, stack: str, *, of: Flight | None, size: int = 2, more: Sequence[Row] = ()) -> RankRecords:
    """A rank between two windows."""
    rows = [*steps(detailed=False), phase(Phase.FORWARD, LAST_NS, LAST_NS + 1, at=NUM_STEPS), *more]
    made = rank(number, *rows, groups=[group("dp", *range(size), key="0")], ending=None)
    return replace(looked(made, stack), flight=None if of is None else Recorded(of))


def waits(size: int = 2, *, joined: int = 1) -> Flight:
    """The rank joined so many collectives of its last step, and the last of them does not complete."""
    return flight(size, HABIT[:joined], complete=joined - 1)


def test_the_rank_that_did_not_join_is_named_with_high_confidence() -> None:
    """With stacks alone the confidence would be medium, and the collective unknown."""
    hang = only(light(0, IN_BACKWARD, of=waits()), light(1, FAULTY, of=flight(2, (), complete=0)))
    assert (hang.kind, hang.culprits, hang.victims) == (HangKind.STUCK, (1,), (0,))
    assert (hang.confidence, hang.axis, hang.collective, hang.step) == (HIGH, "dp", "all_reduce", NUM_STEPS)


def test_a_rank_that_gave_no_answer_is_named_by_the_waits_of_the_others_and_its_stack() -> None:
    """Its C code holds Python's lock. Two others stand outside of communication too, and so its stack is not enough."""
    ranks = [light(0, WAITING, of=waits(3), size=3), light(1, FAULTY, of=None, size=3)]
    hang = only(*ranks, light(2, FAULTY, of=waits(3), size=3))
    assert (hang.kind, hang.culprits, hang.confidence) == (HangKind.STUCK, (1,), MEDIUM)
    assert hang.collective == "all_reduce"


def test_a_recorded_message_that_did_not_end_is_the_wait_and_not_the_last_collective() -> None:
    """torch has no message of gloo. Rank 1 completed the first all-reduce, and waits for a message of rank 0."""
    recv = message("recv", LAST_NS + 2, OPEN, peer=0, at=NUM_STEPS)
    receiver = light(1, WAITING, of=waits(), more=[recv, stall(recv, LAST_NS + 2, OPEN)])
    hang = only(light(0, WAITING, of=waits(joined=2)), receiver)
    assert hang.kind == HangKind.DEADLOCK
    assert "rank 1 waited for rank 0 in recv on dp" in hang.evidence


def test_a_rank_whose_own_last_collective_did_not_end_is_not_named() -> None:
    """Rank 2 has no answer. Its records show an all-reduce without an end: it joined, and failed after that."""
    rows = [*steps(), *waiting()]
    failed = looked(rank(2, *rows, groups=[group("dp", 0, 1, 2, key="0")], ending=None), FAULTY)
    hangs = analysis(*(light(number, WAITING, of=waits(3), size=3) for number in (0, 1)), failed).hangs
    assert not any(hang.culprits for hang in hangs)


def test_the_last_recorded_collective_of_an_earlier_step_shows_no_wait() -> None:
    """Detail ended before the ranks lost their connection to one that was killed. Rank 0 recorded a window more."""

    def failed(number: int, *, more: bool = False, ending: str | None = "RuntimeError") -> RankRecords:
        last_ns = STOP_NS + 100 * MS
        rows = [*steps()[:-1], step(NUM_STEPS, STOP_NS, last_ns), step(NUM_STEPS + 1, last_ns, OPEN)]
        call = collective(STOP_NS + 50 * MS, STOP_NS + 60 * MS, name="all_reduce", at=NUM_STEPS)
        late = Row(kind=Kind.EVENT, start_ns=STOP_NS + 60_000 * MS, end_ns=STOP_NS + 60_000 * MS)
        rows += [*([replace(call, window=NUM_STEPS)] if more else []), *([late] if ending else [])]
        return rank(number, *rows, groups=[group("dp", 0, 1, 2, key="0")], ending=ending)

    assert analysis(failed(0, more=True), failed(1), failed(2, more=True, ending=None)).hangs == ()


def test_two_groups_in_opposite_order_are_a_deadlock() -> None:
    made = [flight(2, ((name, "barrier", 0),), complete=0) for name in ("7", "8")]
    ranks = [replace(of, groups=dict.fromkeys(("0", "7", "8"), (0, 1))) for of in made]
    hang = only(*(light(number, WAITING, of=of) for number, of in enumerate(ranks)))
    assert (hang.kind, hang.culprits, hang.confidence) == (HangKind.DEADLOCK, (0, 1), HIGH)
    assert "rank 0 waited for rank 1 in barrier on group 7" in hang.evidence


def test_a_link_that_breaks_in_a_collective_names_no_rank_although_one_got_its_result() -> None:
    """Rank 2 completed the last collective of the others, and waits in the next."""
    ahead = flight(3, HABIT, complete=1)
    ranks = [light(number, WAITING, of=ahead if number == 2 else waits(3), size=3) for number in range(3)]
    hang = only(*ranks)
    assert (hang.kind, hang.culprits, hang.victims) == (HangKind.NONE_COMPLETES, (), (0, 1, 2))
    assert "all members joined all_reduce on dp, and it did not complete" in hang.evidence


def test_the_first_steps_of_a_training_are_not_its_habit() -> None:
    """DDP builds its buckets anew after its first step. There are two ranks."""
    first = {0: (("0", "all_reduce", 4096),)}
    odd = flight(2, (("0", "broadcast", 1),), complete=0, others=first)
    usual = flight(2, HABIT[:1], complete=0, others=first)
    made = [light(number, WAITING, of=of) for number, of in enumerate((usual, odd))]
    hang = only(*made)
    assert (hang.kind, hang.culprits) == (HangKind.MISMATCH, (1,))


@pytest.mark.parametrize("size", [2, 4])
def test_another_collective_is_a_mismatch_with_its_step(size: int) -> None:
    odd = flight(size, (("0", "broadcast", 1),), complete=0)
    ranks = [light(number, WAITING, of=odd if number == 1 else waits(size), size=size) for number in range(size)]
    hang = only(*ranks)
    assert (hang.kind, hang.culprits, hang.step) == (HangKind.MISMATCH, (1,), NUM_STEPS)
    assert hang.confidence == (HIGH if size == 4 else MEDIUM)
    assert "issued broadcast of 4 bytes in step 5" in hang.evidence
    assert hang.evidence.startswith("collective 11 on dp: ")


def test_a_size_on_which_a_peer_aborted_is_found_by_what_the_survivors_left() -> None:
    """Rank 1 issues twice the elements, between two windows. Rank 2 aborts inside gloo and leaves nothing; the others
    lose their connection, and write their flight recorder and then the exception.
    """
    odd = flight(4, (("0", "all_reduce", 128),), complete=0)
    written_ns = LAST_NS + 5 * MS

    def survivor(number: int) -> RankRecords:
        of = replace(odd if number == 1 else waits(4), at_ns=written_ns)
        made = light(number, "", of=of, size=4, more=[Row(kind=Kind.EVENT, start_ns=written_ns + MS, end_ns=0)])
        return replace(made, looks=(), info=replace(made.info, ending="RuntimeError"))

    aborted = light(2, "", of=None, size=4)
    fatal = {"fatal": f"Fatal Python error: Aborted\n\n{IN_BACKWARD}"}
    aborted = replace(aborted, looks=(), info=replace(aborted.info, signals=fatal))
    hang = only(survivor(0), survivor(1), aborted, survivor(3))
    assert (hang.kind, hang.culprits, hang.step, hang.confidence) == (HangKind.MISMATCH, (1,), NUM_STEPS, HIGH)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("issued", "named"), [(10, True), (11, False)])
def test_a_rank_that_ended_with_fewer_collectives_left_one_out(size: int, issued: int, named: bool) -> None:
    """It completed the step in which the others wait for a collective, their 11th, and ended well."""
    made = left(1, size, counts={"0": issued})
    result = analysis(*(made if number == 1 else ended(number, size, aborted=False) for number in range(size)))
    assert [hang.culprits for hang in result.hangs if hang.kind is HangKind.MISMATCH] == ([(1,)] if named else [])
    if named:
        others = "rank 0" if size == 2 else "ranks 0, 2, 3"
        assert (
            result.hangs[0].evidence == f"on dp, between steps 0 and 5; {others} issued 11 collectives, and rank 1 10"
        )


@pytest.mark.parametrize(("size", "culprits"), [(3, [(0,)]), (4, [(0,)]), (2, [])])
def test_a_rank_that_issued_one_more_than_most_is_named_or_none(size: int, culprits: list[tuple[int, ...]]) -> None:
    """Rank 0 waits in a collective that it alone issues after those of its last step; all others have ended well."""
    one_more = flight(size, (*HABIT, ("0", "barrier", 0)), complete=2)
    waiting_alone = light(0, WAITING, of=one_more, size=size)
    result = analysis(waiting_alone, *(left(at, size, counts={"0": 12}) for at in range(1, size)))
    assert [hang.culprits for hang in result.hangs if hang.kind is HangKind.MISMATCH] == culprits
    assert not {rank for hang in result.hangs for rank in hang.culprits} - {0}


def test_a_rank_that_ended_a_step_early_left_none_out() -> None:
    early = left(1, 2, counts={"0": 10}, num_steps=NUM_STEPS)
    assert not any(hang.kind is HangKind.MISMATCH for hang in analysis(ended(0, 2, aborted=False), early).hangs)


def left(number: int, size: int, *, counts: dict[str, int], num_steps: int = NUM_STEPS + 1) -> RankRecords:
    """A rank that ended well, with torch's counts at its end."""
    rows = steps(at=num_steps, detailed=False)[:-1]
    made = rank(number, *rows, groups=[group("dp", *range(size), key="0")])
    return replace(made, info=replace(made.info, issued_collectives=counts))


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_that_aborted_is_named_if_all_others_did_what_they_always_do(size: int) -> None:
    """Rank 1 expects half of the elements, and aborts inside gloo when it receives what the others always send."""
    hang = only(*(ended(number, size, aborted=number == 1) for number in range(size)))
    assert (hang.kind, hang.culprits, hang.step, hang.confidence) == (HangKind.MISMATCH, (1,), NUM_STEPS, MEDIUM)
    assert hang.evidence.endswith("rank 1 aborted inside gloo, and all others did the same as in earlier steps")


def test_of_two_ranks_the_one_whose_message_was_too_long_for_the_other_is_named() -> None:
    """Rank 1 issues twice the elements. Rank 0 aborts, and cannot show what it expected."""
    odd = replace(flight(2, (("0", "all_reduce", 128),), complete=0), at_ns=LAST_NS + 5 * MS)
    hang = only(ended(0, 2, aborted=True), replace(ended(1, 2, aborted=False), flight=Recorded(odd)))
    assert (hang.kind, hang.culprits, hang.step, hang.confidence) == (HangKind.MISMATCH, (1,), NUM_STEPS, MEDIUM)
    assert hang.evidence.endswith("rank 0 aborted inside gloo, and rank 1 did other than in earlier steps")


@pytest.mark.parametrize(
    "stack",
    [
        f"Fatal Python error: Aborted\n\n{WAITING}",  # its own thread aborted
        f"Fatal Python error: Segmentation fault\n\n{OTHER_THREAD}",
        "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n" + FAULTY.splitlines()[-1],
    ],
)
def test_a_rank_that_failed_otherwise_did_not_issue_another_collective(stack: str) -> None:
    ranks = [ended(number, 2, aborted=number == 1) for number in range(2)]
    failed = replace(ranks[1], info=replace(ranks[1].info, signals={"fatal": stack}))
    assert not any(hang.kind is HangKind.MISMATCH for hang in analysis(ranks[0], failed).hangs)


def test_a_rank_that_aborted_is_not_named_without_the_flight_recorders_of_all_others() -> None:
    ranks = [ended(number, 4, aborted=number == 1) for number in range(4)]
    silent = replace(ranks[3], flight=None)
    assert not any(hang.culprits for hang in analysis(*ranks[:3], silent).hangs)


IN_FORWARD = phase(Phase.FORWARD, LAST_NS + 2, OPEN, at=NUM_STEPS)


@pytest.mark.parametrize(
    ("last", "culprits"),
    [
        pytest.param([], [(1,)], id="it issued another collective instead"),
        pytest.param([phase(Phase.BACKWARD, NUM_STEPS * STEP_NS, LAST_NS, at=NUM_STEPS)], [], id="its step lacks none"),
        pytest.param([IN_FORWARD], [], id="native code in forward aborted"),
    ],
)
def test_a_rank_that_aborted_without_a_stack_is_named_if_its_step_left_out_a_phase(
    last: list[Row], culprits: list[tuple[int, ...]]
) -> None:
    """Otherwise its abort may have any cause."""
    backwards = [phase(Phase.BACKWARD, at * STEP_NS, at * STEP_NS + MS, at=at) for at in range(NUM_STEPS + 1)]
    of_aborted = [*backwards[:-1], *last]
    no_stack = {"fatal": "Fatal Python error: Aborted\n\nNo stack: the agent saw that the signal ended the process.\n"}
    made = [ended(at, 3, aborted=at == 1, rows=of_aborted if at == 1 else backwards) for at in range(3)]
    made[1] = replace(made[1], info=replace(made[1].info, signals=no_stack))
    found = [hang for hang in analysis(*made).hangs if hang.kind is HangKind.MISMATCH]
    assert [hang.culprits for hang in found] == culprits
    for hang in found:
        assert hang.confidence == MEDIUM
        assert "rank 1 aborted in a step without its backward, and all others did the same" in hang.evidence


@pytest.mark.parametrize(("aborted_in", "culprits"), [(2, (1,)), (3, (2,)), (4, ())])
def test_the_step_in_which_a_rank_aborted_decides_between_two_others(
    aborted_in: int, culprits: tuple[int, ...]
) -> None:
    """Rank 2 sums up one number after step 2, and rank 1 goes on to the gradients of step 3."""
    world = group("dp", 0, 1, 2, key="0")
    issued = {1: (3, 4096), 2: (2, 4)}
    ranks = []
    for number in range(3):
        at, num_bytes = issued.get(number, (aborted_in, 0))
        one = collective(at * STEP_NS, OPEN, name="all_reduce", at=at, num_bytes=num_bytes)
        rows = [*(step(n, n * STEP_NS, (n + 1) * STEP_NS) for n in range(at)), step(at, at * STEP_NS, OPEN)]
        made = rank(number, *rows, *([one] if num_bytes else []), groups=[world], ending=None)
        signals = {} if num_bytes else {"fatal": "Fatal Python error: Aborted\n"}
        ranks.append(replace(made, info=replace(made.info, signals=signals)))
    timeline = build_timeline(run(*ranks))
    calls = {number: each.calls[-1] for number, each in latest_calls(timeline).items() if each.calls}
    mismatch = Mismatch(calls=calls, culprits=(), shifted=False, reference="")
    assert with_aborted(timeline, mismatch).culprits == culprits


def ended(number: int, size: int, *, aborted: bool, rows: Sequence[Row] = ()) -> RankRecords:
    """A rank that aborted inside gloo, or that lost its connection and wrote its flight recorder before."""
    if aborted:
        made = light(number, "", of=None, size=size, more=rows)
        fatal = {"fatal": f"Fatal Python error: Aborted\n\n{OTHER_THREAD}"}
        return replace(made, looks=(), info=replace(made.info, signals=fatal))
    written_ns = LAST_NS + 5 * MS
    clocks = [*rows, Row(kind=Kind.EVENT, start_ns=written_ns + MS, end_ns=0)]
    made = light(number, "", of=replace(waits(size), at_ns=written_ns), size=size, more=clocks)
    return replace(made, looks=(), info=replace(made.info, ending="RuntimeError"))


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
    hang = only(*(light(number, WAITING, of=of, size=3, more=clocks) for number, of in enumerate(made)))
    assert (hang.kind, hang.culprits, hang.step) == (HangKind.MISMATCH, (1,), 3)


def test_readings_of_both_clocks_that_a_busy_host_tore_apart_move_no_collective_to_another_step() -> None:
    """Rank 1 lost its processor between the two readings, four times: its wall times seem 40 ms too late. Its
    collectives would belong to the steps before, until the end.
    """
    clocks = [clock(at, at) for at in range(6)]
    torn = [clock(at * STEP_NS + 50 * MS, at * STEP_NS + 90 * MS) for at in range(1, NUM_STEPS)]
    backward = [phase(Phase.BACKWARD, at * STEP_NS, at * STEP_NS + 2 * MS, at=at) for at in range(NUM_STEPS)]
    stuck = light(1, FAULTY, of=flight(2, (), complete=0), more=[*clocks, *torn, *backward])
    hang = only(light(0, IN_BACKWARD, of=waits()), stuck)
    assert (hang.kind, hang.culprits, hang.step) == (HangKind.STUCK, (1,), NUM_STEPS)


IN_OWN_LINE = """Current thread 0x00007f1 (most recent call first):
  File "/home/me/train.py", line 9 in load
"""


@pytest.mark.parametrize(("seconds", "culprits"), [(4, ()), (6, (1,))])
def test_at_level_0_a_rank_that_owes_its_flight_recorder_holds_the_lock(
    seconds: int, culprits: tuple[int, ...]
) -> None:
    """No probe sees waits there, so its line may be `work.wait()`. But that waits without the lock, and answers."""
    silent = light(1, IN_OWN_LINE, of=None)
    later = replace(silent.looks[0], at_ns=SEEN_NS + seconds * 1_000 * MS, stack="")
    probes = {"collectives": "off", "flight_recorder": "on"}
    silent = replace(silent, looks=(*silent.looks, later), info=replace(silent.info, probes=probes))
    assert only(light(0, WAITING, of=waits()), silent).culprits == culprits


@pytest.mark.parametrize(("steps_of_1", "culprits"), [(NUM_STEPS, (1,)), (NUM_STEPS + 1, ())])
def test_a_rank_that_left_in_the_step_in_which_the_others_wait_is_named(
    steps_of_1: int, culprits: tuple[int, ...]
) -> None:
    """Its collectives there are not recorded. If it completed the step, it may have joined."""
    left = rank(1, *steps(at=steps_of_1, detailed=False)[:-1], groups=[group("dp", 0, 1, key="0")])
    left = replace(left, info=replace(left.info, with_process=True))
    hang = only(light(0, WAITING, of=waits()), left)
    assert (hang.culprits, hang.suspects) == (culprits, () if culprits else (1,))
    assert hang.kind is (HangKind.LEFT if culprits else HangKind.UNKNOWN)


def test_of_two_ranks_that_wait_inside_of_autograd_the_one_that_left_its_habit_is_named() -> None:
    """DDP waits there without a record. Rank 1 issued its last gradients on another group."""
    odd = flight(2, (("7", "all_reduce", 64),), complete=0)
    hang = only(light(0, IN_BACKWARD, of=waits()), light(1, IN_BACKWARD, of=odd))
    assert (hang.kind, hang.culprits, hang.victims, hang.confidence) == (HangKind.MISMATCH, (1,), (0,), MEDIUM)


def test_garbage_that_a_dying_process_collects_makes_no_answer_old() -> None:
    """A time-out of gloo ended rank 0 a minute after it wrote its answer."""
    collected = phase(Phase.GC, SEEN_NS + 60_000 * MS, SEEN_NS + 60_001 * MS, at=NUM_STEPS)
    waited = light(0, IN_BACKWARD, of=waits(), more=[collected])
    dead = replace(waited, info=replace(waited.info, ending="RuntimeError"))
    hang = only(dead, light(1, FAULTY, of=flight(2, (), complete=0)))
    assert (hang.kind, hang.culprits, hang.collective) == (HangKind.STUCK, (1,), "all_reduce")


def test_an_answer_from_before_the_last_progress_is_not_used() -> None:
    old = replace(waits(), at_ns=STOP_NS - STEP_NS)
    hang = only(light(0, WAITING, of=old), light(1, WAITING, of=old))
    assert (hang.kind, hang.confidence) == (HangKind.UNKNOWN, UNKNOWN)


@pytest.mark.parametrize("stacks", [(WAITING, WAITING), (IN_BACKWARD, IN_BACKWARD), (IN_BACKWARD, WAITING)])
def test_a_collective_that_all_joined_and_that_does_not_complete_names_no_rank(stacks: tuple[str, str]) -> None:
    """The network is cut. DDP waits inside of autograd."""
    hang: Hang = only(*(light(number, stack, of=waits()) for number, stack in enumerate(stacks)))
    assert (hang.kind, hang.culprits, hang.suspects, hang.victims) == (HangKind.NONE_COMPLETES, (), (), (0, 1))
    assert (hang.confidence, hang.collective) == (MEDIUM, "all_reduce")


@pytest.mark.parametrize("state", ["T", "D"])
def test_a_collective_that_a_stopped_process_joined_is_not_called_one_of_the_network(state: str) -> None:
    """Its threads stand still too, so it is to blame although it joined."""
    stopped = light(1, IN_BACKWARD, of=waits())
    stopped = replace(stopped, looks=(replace(stopped.looks[0], state=state),))
    hang = only(light(0, IN_BACKWARD, of=waits()), stopped)
    assert hang.kind is not HangKind.NONE_COMPLETES


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
