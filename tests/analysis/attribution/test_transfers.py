"""Messages that arrived before the receiver waited: similar messages give their time on the wire."""

from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.pipeline.orders import gpipe
from tests.analysis.pipeline.pipelines import Pipeline
from tests.timeline.build import Row, collective, group, message, rank, stall, step, timeline
from traincope.analysis import analyze
from traincope.analysis.attribution.transfers import transfers
from traincope.analysis.pipeline.bubble import measured_transfers
from traincope.events import Flag
from traincope.store import RECORD_DTYPE
from traincope.timeline import match_instances
from traincope.timeline.timeline import Marks

PP = group("pp", 0, 1)
SENT = 10
"""Begin of every send. The sender waits for it at 100, as the receiver does if it was busy."""


def transfer_times(*waited_ns: int | None, at: list[int] | None = None) -> tuple[list[int], list[bool]]:
    """Compute the transfers of messages from 0 to 1. `waited_ns`: the receiver's stall from `SENT`, None if busy.

    `at` are the steps of the messages.
    """
    sends: list[Row] = [step(0, 0, 100)]
    receives: list[Row] = [step(0, 0, 100)]
    for number, waited in enumerate(waited_ns):
        which = {"sequence": number, "at": 0 if at is None else at[number]}
        end = 100 - number if waited is None else SENT + waited
        receive = message("recv", 0, end, peer=0, **which)
        receives += [receive] if waited is None else [receive, stall(receive, SENT, end)]
        sends.append(message("send", SENT, 100, peer=1, **which))
    run = timeline(rank(0, *sends, groups=[PP]), rank(1, *receives, groups=[PP]))
    result = transfers(run, match_instances(run))
    return result.ns.tolist(), result.measured.tolist()


def test_a_message_that_its_receiver_stalled_for_has_its_own_time() -> None:
    assert transfer_times(7, 9) == ([7, 9], [True, True])


def test_a_hidden_message_has_the_median_time_of_the_others() -> None:
    assert transfer_times(4, None, 8, 20, None) == ([4, 8, 8, 20, 8], [True, False, True, True, False])


@pytest.mark.parametrize(("ends", "smallest"), [((100, 99, 98), 88), ((98, 99, 100), 88), ((99, 98, 100), 88)])
def test_hidden_messages_alone_have_their_smallest_bound(ends: tuple[int, ...], smallest: int) -> None:
    """From the send at 10 to the ends of the receives, in any order."""
    sends: list[Row] = [step(0, 0, 100)]
    receives: list[Row] = [step(0, 0, 100)]
    for number, end in enumerate(ends):
        sends.append(message("send", SENT, 100, peer=1, sequence=number))
        receives.append(message("recv", 0, end, peer=0, sequence=number))
    run = timeline(rank(0, *sends, groups=[PP]), rank(1, *receives, groups=[PP]))
    result = transfers(run, match_instances(run))
    assert (result.ns.tolist(), result.measured.tolist()) == ([smallest] * 3, [False] * 3)


@pytest.mark.parametrize(("looked", "measured"), [(55, True), (56, False)])
def test_a_receiver_that_stalls_for_less_than_half_was_busy(looked: int, measured: bool) -> None:
    """90 ns from the send at 10 to the end at 100. The receiver stalls from the time at which it waits."""
    sent, receive = message("send", SENT, 100, peer=1), message("recv", 0, 100, peer=0)
    run = timeline(
        rank(0, step(0, 0, 100), sent, groups=[PP]),
        rank(1, step(0, 0, 100), receive, stall(receive, looked, 100), groups=[PP]),
    )
    assert transfers(run, match_instances(run)).measured.tolist() == [measured]


def test_stalls_for_one_message_add_up() -> None:
    """Of the 90 ns, the receiver stalls 30 and 40, together more than half."""
    sent, receive = message("send", SENT, 100, peer=1), message("recv", 0, 100, peer=0)
    stalls = stall(receive, SENT, 40), stall(receive, 60, 100)
    run = timeline(
        rank(0, step(0, 0, 100), sent, groups=[PP]),
        rank(1, step(0, 0, 100), receive, *stalls, groups=[PP]),
    )
    assert transfers(run, match_instances(run)).measured.tolist() == [True]


def test_only_messages_of_one_step_are_similar() -> None:
    assert transfer_times(4, None, 8, None, at=[1, 1, 2, 2])[0] == [4, 4, 8, 8]


def test_a_message_with_one_recorded_end_has_the_median_of_its_axis() -> None:
    """Rank 0 sends two messages of 7 and 9 ns to rank 1, and one to rank 2, which has no record."""
    groups = [group("pp", 0, 1), group("pp", 0, 2), group("cp", 0, 2)]
    sends: list[Row] = [step(0, 0, 1_000)]
    receives: list[Row] = [step(0, 0, 1_000)]
    for number, took in ((0, 7), (1, 9)):
        receive = message("recv", 0, SENT + took, peer=0, sequence=number)
        sends.append(message("send", SENT, 900, peer=1, sequence=number))
        receives += [receive, stall(receive, SENT, SENT + took)]
    lost = [message("send", 100, 900, peer=2, group=1), message("send", 100, 900, peer=2, group=2)]
    run = timeline(rank(0, *sends, *lost, groups=groups), rank(1, *receives, groups=groups), world_size=3)
    instances = match_instances(run)
    result = transfers(run, instances)
    on_pp = np.array([instances.channels[channel].group.startswith("pp") for channel in instances.channel])
    assert sorted(result.ns[on_pp].tolist()) == [7, 8, 9]
    assert result.ns[~on_pp].tolist() == [800]
    assert result.measured.sum() == 2


DP = group("dp", 0, 1)


def all_reduce_times(*collectives: tuple[int, int, int]) -> list[int]:
    """Compute the time on the wire of collectives (bytes, ns, exact). Both ranks begin them at 10 of the step.

    The end is seen exactly (1) or only later (0)."""
    calls = [
        collective(10, 10 + ns, sequence=number, num_bytes=size, flags=0 if is_exact else Flag.DONE_BEFORE_WAIT)
        for number, (size, ns, is_exact) in enumerate(collectives)
    ]
    run = timeline(*(rank(number, step(0, 0, 200), *calls, groups=[DP]) for number in range(2)))
    return transfers(run, match_instances(run)).ns.tolist()


def test_a_collective_that_ended_before_any_wait_has_the_median_of_its_size() -> None:
    assert all_reduce_times((8, 150, 0), (8, 20, 1), (8, 30, 1), (8, 40, 1), (64, 90, 1)) == [30, 20, 30, 40, 90]


def test_an_estimated_transfer_is_not_longer_than_its_bound() -> None:
    assert all_reduce_times((8, 15, 0), (8, 20, 1)) == [15, 20]


def test_collectives_without_an_exact_one_of_their_size_have_the_smallest_bound() -> None:
    assert all_reduce_times((8, 150, 0), (8, 120, 0), (64, 20, 1)) == [120, 120, 20]


def test_the_table_and_the_bubble_show_the_same_transfer() -> None:
    """Forwards of stage 1 take twice as long, so three of its four messages arrive early; each takes 7."""
    durations = {("F", 0): 10, ("F", 1): 20, ("B", 0): 20, ("B", 1): 20}
    run = timeline(*Pipeline(orders=gpipe(2, 4), durations=durations, transfer_ns=7, posts_ahead=True).ranks())
    instances = match_instances(run)
    by_pair = measured_transfers(instances, transfers(run, instances))
    assert {pair: (steps.tolist(), ns.tolist()) for pair, (steps, ns) in by_pair.items()} == {
        (0, 1): ([0], [7]),
        (1, 0): ([0], [7]),
    }
    assert {row.operation: (row.count, row.transfer_ns) for row in analyze(run).comm} == {
        "recv": (8, 8 * 7),
        "send": (8, 8 * 7),
    }


@given(st.lists(st.none() | st.integers(1, 40), max_size=9), st.integers(1, 40))
def test_estimated_transfers_do_not_change_the_median(waited_ns: list[int | None], known_ns: int) -> None:
    """The bubble uses a step's median, so it depends only on the measured messages."""
    result, measured = transfer_times(*waited_ns, known_ns)
    known = [ns for ns, is_measured in zip(result, measured, strict=True) if is_measured]
    assert round(median(result)) == round(median(known))


def test_the_size_of_a_collective_is_that_of_its_largest_part() -> None:
    """Rank 0 sends 64 bytes in the first one and rank 1 only 8. The last one, whose end is seen late, is like it."""
    sizes, took_ns = ((64, 8), (8, 8), (64, 8)), (90, 20, 150)

    def calls(of: int) -> list[Row]:
        return [
            collective(
                10, 10 + ns, sequence=number, num_bytes=size[of], flags=Flag.DONE_BEFORE_WAIT if number == 2 else 0
            )
            for number, (size, ns) in enumerate(zip(sizes, took_ns, strict=True))
        ]

    run = timeline(*(rank(number, step(0, 0, 200), *calls(number), groups=[DP]) for number in range(2)))
    assert transfers(run, match_instances(run)).ns.tolist() == [90, 20, 90]


NO_MARK = np.zeros(0, dtype=np.int64)
MARKS = Marks(step=NO_MARK, phase=NO_MARK, at_ns=NO_MARK, ahead_ns=NO_MARK, collectives=np.zeros(0, dtype=RECORD_DTYPE))


def test_by_marks_a_message_takes_no_longer_than_its_bound() -> None:
    """Marks show two messages of 20 and 30. One that they do not show has their median, or less if it ended sooner."""
    took_ns, shown = (20, 30, 12, 80), (True, True, False, False)
    sends, receives = [step(0, 0, 200)], [step(0, 0, 200)]
    for number, (ns, is_shown) in enumerate(zip(took_ns, shown, strict=True)):
        flags = 0 if is_shown else Flag.DONE_BEFORE_WAIT
        sends.append(message("send", SENT, SENT + ns, peer=1, sequence=number, flags=flags))
        receives.append(message("recv", 0, SENT + ns, peer=0, sequence=number, flags=flags))
    run = timeline(rank(0, *sends, groups=[PP]), rank(1, *receives, groups=[PP]))
    run = replace(run, ranks=tuple(replace(each, marks=MARKS) for each in run.ranks))
    result = transfers(run, match_instances(run))
    assert (result.ns.tolist(), result.measured.tolist()) == ([20, 30, 12, 25], [True] * 4)
