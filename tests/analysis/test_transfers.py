"""Messages that came before they were looked for: how long they were on the wire follows from their like."""

from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.orders import gpipe
from tests.analysis.pipelines import Pipeline
from tests.timeline.build import Row, collective, group, message, rank, stall, step, timeline
from traincope.analysis import analyze
from traincope.analysis.bubble import measured_transfers
from traincope.analysis.transfers import transfers
from traincope.events import Flag
from traincope.timeline import match_instances

PP = group("pp", 0, 1)
SENT = 10
"""When every sender begins; it looks back at 100, as the receiver does for what came while it was busy."""


def told(*waited_ns: int | None, at: list[int] | None = None) -> tuple[list[int], list[bool]]:
    """Transfers of messages from 0 to 1 whose receiver stood still from `SENT` for so long, or was busy (None).

    `at` are the steps they belong to.
    """
    sends: list[Row] = [step(0, 0, 100)]
    receives: list[Row] = [step(0, 0, 100)]
    for number, waited in enumerate(waited_ns):
        which = {"sequence": number, "at": 0 if at is None else at[number]}
        end = 100 - number if waited is None else SENT + waited
        got = message("recv", 0, end, peer=0, **which)
        receives += [got] if waited is None else [got, stall(got, SENT, end)]
        sends.append(message("send", SENT, 100, peer=1, **which))
    run = timeline(rank(0, *sends, groups=[PP]), rank(1, *receives, groups=[PP]))
    found = transfers(run, match_instances(run))
    return found.ns.tolist(), found.measured.tolist()


def test_what_was_stood_still_for_took_its_own_time() -> None:
    assert told(7, 9) == ([7, 9], [True, True])


def test_what_came_while_the_receiver_was_busy_took_the_median_of_the_others() -> None:
    assert told(4, None, 8, 20, None) == ([4, 8, 8, 20, 8], [True, False, True, True, False])


def test_where_all_came_so_the_least_bound_is_what_is_known() -> None:
    """From the send at 10 to the receiver's looks at 100, 99 and 98."""
    assert told(None, None, None) == ([88, 88, 88], [False, False, False])


@pytest.mark.parametrize(("looked", "measured"), [(55, True), (56, False)])
def test_who_stood_still_for_less_than_half_of_it_was_busy(looked: int, measured: bool) -> None:
    """From the send at 10 to the end at 100 are 90, of which the receiver stood still from when it looked."""
    sent, got = message("send", SENT, 100, peer=1), message("recv", 0, 100, peer=0)
    run = timeline(
        rank(0, step(0, 0, 100), sent, groups=[PP]),
        rank(1, step(0, 0, 100), got, stall(got, looked, 100), groups=[PP]),
    )
    assert transfers(run, match_instances(run)).measured.tolist() == [measured]


def test_only_messages_of_one_step_are_alike() -> None:
    assert told(4, None, 8, None, at=[1, 1, 2, 2])[0] == [4, 4, 8, 8]


def test_a_message_of_which_one_end_is_missing_is_taken_for_the_median_of_its_axis() -> None:
    """Rank 0 sends twice what takes 7 and 9 to rank 1, and once to rank 2, of which nothing is known."""
    groups = [group("pp", 0, 1), group("pp", 0, 2), group("cp", 0, 2)]
    sends: list[Row] = [step(0, 0, 1_000)]
    receives: list[Row] = [step(0, 0, 1_000)]
    for number, took in ((0, 7), (1, 9)):
        got = message("recv", 0, SENT + took, peer=0, sequence=number)
        sends.append(message("send", SENT, 900, peer=1, sequence=number))
        receives += [got, stall(got, SENT, SENT + took)]
    lost = [message("send", 100, 900, peer=2, group=1), message("send", 100, 900, peer=2, group=2)]
    run = timeline(rank(0, *sends, *lost, groups=groups), rank(1, *receives, groups=groups), world_size=3)
    instances = match_instances(run)
    found = transfers(run, instances)
    on_pp = np.array([instances.channels[channel].group.startswith("pp") for channel in instances.channel])
    assert sorted(found.ns[on_pp].tolist()) == [7, 8, 9]
    assert found.ns[~on_pp].tolist() == [800]
    assert found.measured.sum() == 2


DP = group("dp", 0, 1)


def beside(*collectives: tuple[int, int, int]) -> list[int]:
    """On the wire, of collectives of so many bytes that both ranks begin at 10 of the step and end, of which the
    end (after so many ns) is seen (1) or found past (0)."""
    calls = [
        collective(10, 10 + ns, sequence=number, num_bytes=size, flags=0 if seen else Flag.DONE_BEFORE_WAIT)
        for number, (size, ns, seen) in enumerate(collectives)
    ]
    run = timeline(*(rank(number, step(0, 0, 200), *calls, groups=[DP]) for number in range(2)))
    return transfers(run, match_instances(run)).ns.tolist()


def test_a_collective_that_was_over_before_anybody_looked_took_the_median_of_its_size() -> None:
    assert beside((8, 150, 0), (8, 20, 1), (8, 30, 1), (8, 40, 1), (64, 90, 1)) == [30, 20, 30, 40, 90]


def test_but_no_longer_than_until_it_was_found_over() -> None:
    assert beside((8, 15, 0), (8, 20, 1)) == [15, 20]


def test_where_none_of_its_size_was_seen_the_least_bound_is_what_is_known() -> None:
    assert beside((8, 150, 0), (8, 120, 0), (64, 20, 1)) == [120, 120, 20]


def test_the_table_and_the_bubble_say_one_number() -> None:
    """Forwards of stage 1 take twice as long, so of its four messages three lie there; each takes 7."""
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
def test_what_is_estimated_never_moves_the_median(waited_ns: list[int | None], known_ns: int) -> None:
    """So the bubble, which takes a step's median, is told by the measured ones alone."""
    found, measured = told(*waited_ns, known_ns)
    known = [ns for ns, own in zip(found, measured, strict=True) if own]
    assert round(median(found)) == round(median(known))
