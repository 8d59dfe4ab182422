"""The same collective found on all its ranks, whatever numbers each rank gave to group and name."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.timeline.build import Row, collective, group, message, phase, rank, step, timeline
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.store import RECORD_DTYPE, RankRecords
from traincope.timeline import Channel, Instances, match_instances

FSDP = group("fsdp", 0, 1)
WORLD = group("world", 0, 1)
PP = group("pp", 0, 1)


def match(*ranks: RankRecords) -> Instances:
    return match_instances(timeline(*ranks))


def pair(first: Row, second: Row) -> Instances:
    return match(rank(0, first, groups=[FSDP]), rank(1, second, groups=[FSDP]))


def test_transfer_is_the_shortest_duration_and_the_rest_is_waiting() -> None:
    found = pair(collective(0, 100), collective(70, 100))
    assert found.transfer_ns.tolist() == [30]
    assert found.wait_ns.tolist() == [70, 0]
    assert (found.complete.tolist(), found.exact.tolist()) == ([True], [True])


def test_clocks_that_disagree_change_nothing() -> None:
    found = pair(collective(0, 100), collective(1_000_070, 1_000_100))
    assert found.wait_ns.tolist() == [70, 0]


def test_group_and_name_numbers_are_each_ranks_own() -> None:
    first = rank(0, collective(0, 100, group=0), groups=[FSDP, WORLD])
    second = rank(1, collective(70, 100, group=1), groups=[WORLD, FSDP], first_name="something else")
    found = match(first, second)
    assert len(found) == 1
    assert found.axis.tolist() == ["fsdp", "fsdp"]
    assert found.operation.tolist() == ["all_gather", "all_gather"]


def test_collectives_of_two_groups_with_one_count_are_two() -> None:
    rows = (collective(0, 10, group=0), collective(20, 40, group=1))
    found = match(rank(0, *rows, groups=[FSDP, WORLD]), rank(1, *rows, groups=[FSDP, WORLD]))
    assert sorted(found.transfer_ns.tolist()) == [10, 20]


def test_a_send_meets_its_receive() -> None:
    sender = rank(0, message("send", 50, 60, peer=1, tag=3), groups=[PP])
    receiver = rank(1, message("recv", 0, 60, peer=0, tag=3), groups=[PP])
    found = match(sender, receiver)
    assert found.transfer_ns.tolist() == [10]
    assert found.wait_ns.tolist() == [0, 50]
    assert found.channels == (Channel(PP.key, 0, 1, 3),)


def posted_ahead(*, sender_boot: str, receiver_boot: str) -> Instances:
    """Received at once, but waited for on the sending side only at the end of its step."""
    sender = rank(0, message("send", 50, 500, peer=1), groups=[PP], boot_id=sender_boot)
    return match(sender, rank(1, message("recv", 0, 60, peer=0), groups=[PP], boot_id=receiver_boot))


def test_a_transfer_runs_from_the_later_posting_to_the_earlier_end_where_clocks_are_shared() -> None:
    assert posted_ahead(sender_boot="a", receiver_boot="a").transfer_ns.tolist() == [10]


def test_between_hosts_only_durations_can_be_trusted() -> None:
    assert posted_ahead(sender_boot="a", receiver_boot="b").transfer_ns.tolist() == [60]


def test_the_way_back_is_another_instance() -> None:
    first = rank(0, message("send", 0, 5, peer=1), message("recv", 5, 30, peer=1), groups=[PP])
    second = rank(1, message("recv", 0, 7, peer=0), message("send", 20, 30, peer=0), groups=[PP])
    assert sorted(match(first, second).transfer_ns.tolist()) == [5, 10]


def test_tags_and_counts_tell_messages_of_one_pair_apart() -> None:
    first = rank(
        0,
        message("send", 0, 5, peer=1, tag=0, sequence=0),
        message("send", 0, 6, peer=1, tag=1, sequence=0),
        message("send", 0, 7, peer=1, tag=0, sequence=1),
        groups=[PP],
    )
    assert sorted(match(first, rank(1, groups=[PP])).transfer_ns.tolist()) == [5, 6, 7]


def test_an_end_seen_only_late_bounds_the_transfer_but_is_no_wait() -> None:
    found = pair(collective(0, 100, flags=Flag.DONE_BEFORE_WAIT), collective(70, 100))
    assert found.exact.tolist() == [True]
    assert found.wait_ns.tolist() == [0, 0]


def test_where_every_end_was_seen_late_nothing_is_exact() -> None:
    late = Flag.DONE_BEFORE_WAIT
    assert pair(collective(0, 100, flags=late), collective(70, 100, flags=late)).exact.tolist() == [False]


def test_a_missing_peer_makes_it_incomplete() -> None:
    found = match(rank(0, collective(0, 100), groups=[FSDP]))
    assert (found.complete.tolist(), found.transfer_ns.tolist()) == ([False], [100])


def test_what_is_still_open_or_raised_has_no_duration() -> None:
    found = pair(collective(0, OPEN), collective(70, 100, flags=Flag.RAISED))
    assert len(found) == len(found.number) == 0


def test_a_run_without_collectives_has_no_instances() -> None:
    made = timeline(rank(0, step(0, 0, 5), groups=[FSDP]), rank(1))
    found = match_instances(made)
    assert len(found) == 0
    assert found.find(made.ranks[0], np.zeros(2, dtype=RECORD_DTYPE)).tolist() == [-1, -1]


def test_an_unknown_instance_is_not_found() -> None:
    made = timeline(*(rank(r, collective(0, 100, sequence=4), groups=[FSDP, WORLD]) for r in (0, 1)))
    found, known = match_instances(made), made.ranks[0].main
    counted_on, elsewhere = known.copy(), known.copy()
    counted_on["sequence"], elsewhere["group"] = 5, 1
    assert [found.find(made.ranks[0], asked).tolist() for asked in (known, counted_on, elsewhere)] == [[0], [-1], [-1]]


def test_what_is_begun_within_an_evaluation_is_marked() -> None:
    calls = [collective(start, start + 5, sequence=n) for n, start in enumerate((0, 10, 39, 40))]
    found = match(rank(0, calls[0], phase(Phase.EVALUATION, 10, 40), *calls[1:], groups=[FSDP]))
    assert found.parts.evaluating.tolist() == [False, True, True, False]


@given(durations=st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), max_size=8))
@settings(deadline=None)
def test_every_instance_has_its_own_minimum(durations: list[list[int]]) -> None:
    of_three = group("fsdp", 0, 1, 2)
    ranks = [
        rank(r, *(collective(0, row[r], sequence=n) for n, row in enumerate(durations)), groups=[of_three])
        for r in range(3)
    ]
    found = match(*ranks)
    assert found.transfer_ns[found.sequence.argsort()].tolist() == [min(row) for row in durations]
    assert int(found.wait_ns.sum()) == sum(sum(row) - 3 * min(row) for row in durations)


parts = st.tuples(st.integers(0, 1), st.integers(0, 2), st.sampled_from([-7, 0, 2**30]), st.integers(1, 50))


@given(drawn=st.lists(parts, min_size=1, max_size=12, unique_by=lambda part: part[:3]))
@settings(deadline=None)
def test_any_two_keys_that_differ_are_two_instances(drawn: list[tuple[int, int, int, int]]) -> None:
    """Rank 0 sends: (group, sequence, tag) are all that tells its messages apart."""
    rows = [message("send", 0, ns, peer=1, group=at, sequence=n, tag=tag) for at, n, tag, ns in drawn]
    made = timeline(rank(0, *rows, groups=[FSDP, PP]))
    found = match_instances(made)
    by_key: dict[tuple[int, int], list[int]] = defaultdict(list)
    for channel, n, transfer in zip(found.channel, found.sequence.tolist(), found.transfer_ns.tolist(), strict=True):
        by_key[n, found.channels[channel].tag].append(transfer)
    assert len(found) == len(drawn)
    assert {key: sorted(transfers) for key, transfers in by_key.items()} == {
        (n, tag): sorted(ns for _, m, other, ns in drawn if (m, other) == (n, tag)) for _, n, tag, _ in drawn
    }
    assert found.find(made.ranks[0], made.ranks[0].main).tolist() == found.number.tolist()
    assert sorted(found.number.tolist()) == list(range(len(drawn)))


def test_equal_counts_of_different_operations_are_not_one_collective() -> None:
    found = pair(collective(0, 100, name="barrier"), collective(70, 100, name="all_reduce"))
    assert (found.alike.tolist(), found.complete.tolist()) == ([False], [False])
    assert (found.splits.tolist(), found.comparable.tolist()) == ([False], [False])


def test_two_parts_of_one_rank_are_not_a_whole_group() -> None:
    first = rank(0, collective(0, 10), collective(50, 60), groups=[FSDP])
    found = match(first, rank(1, collective(0, 10, sequence=7), groups=[FSDP]))
    assert (found.alike.tolist(), found.complete.tolist()) == ([False, True], [False, False])


@pytest.mark.parametrize(
    ("states", "parts"),
    [
        (("on", "on"), 2),
        (("on", "off: level 0, its own time was above 0.5 % of the step"), 2),
        (("absent: AttributeError: x", "absent: it failed to install"), 2),
        (("on", "absent: AttributeError: x"), 1),
        (("on", "on, but somebody else's kernel hid c10d::allreduce_"), 1),
    ],
)
def test_ranks_that_were_watched_otherwise_have_only_messages_in_common(states: tuple[str, str], parts: int) -> None:
    """A message each way counts the same everywhere; a collective that one of them did not see shifts all after it."""
    rows = ((message("send", 0, 5, peer=1), collective(5, 9)), (message("recv", 0, 5, peer=0), collective(5, 9)))
    ranks = [rank(number, *rows[number], groups=[WORLD]) for number in range(2)]
    seen = [
        replace(one, info=replace(one.info, probes={"collectives": state}))
        for one, state in zip(ranks, states, strict=True)
    ]
    found = match(*seen)
    of_messages = np.array([channel.direct for channel in found.channels])[found.channel]
    sizes = np.bincount(found.number)
    assert sizes[of_messages].tolist() == [2]
    assert sizes[~of_messages].tolist() == [parts] * (2 // parts)
    assert found.complete.tolist() == (sizes == 2).tolist()
    assert [found.find(one, one.of_kind(Kind.COLLECTIVE)).min() >= 0 for one in timeline(*seen).ranks] == [True, True]
