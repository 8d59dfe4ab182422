"""Matching of collectives across ranks whose numbers of groups and names differ."""

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
    result = pair(collective(0, 100), collective(70, 100))
    assert result.transfer_ns.tolist() == [30]
    assert result.wait_ns.tolist() == [70, 0]
    assert (result.complete.tolist(), result.exact.tolist()) == ([True], [True])


def test_clock_errors_do_not_change_durations() -> None:
    result = pair(collective(0, 100), collective(1_000_070, 1_000_100))
    assert result.wait_ns.tolist() == [70, 0]


def test_group_and_name_numbers_are_each_ranks_own() -> None:
    first = rank(0, collective(0, 100, group=0), groups=[FSDP, WORLD])
    second = rank(1, collective(70, 100, group=1), groups=[WORLD, FSDP], first_name="something else")
    result = match(first, second)
    assert len(result) == 1
    assert result.axis.tolist() == ["fsdp", "fsdp"]
    assert result.operation.tolist() == ["all_gather", "all_gather"]


def in_window(row: Row, window: int, *, torch_count: int = 0) -> Row:
    return replace(row, window=window, tag=row.tag or torch_count)


def test_equal_counts_in_two_windows_are_two_instances() -> None:
    rows = [in_window(collective(at, at + 100, sequence=0), at) for at in (0, 800)]
    others = [in_window(collective(at + 70, at + 100, sequence=0), at) for at in (0, 800)]
    result = match(rank(0, *rows, groups=[FSDP]), rank(1, *others, groups=[FSDP]))
    assert (result.window.tolist(), result.sequence.tolist()) == ([0, 800], [0, 0])
    assert result.complete.all()
    assert result.wait_ns.tolist() == [70, 70, 0, 0]


def test_a_window_of_one_rank_alone_is_incomplete() -> None:
    rows = [in_window(collective(at, at + 100), at) for at in (0, 8)]
    result = match(rank(0, *rows, groups=[FSDP]), rank(1, rows[0], groups=[FSDP]))
    assert (result.complete.tolist(), result.num_shifted) == ([True, False], 0)


def test_a_window_whose_members_begin_at_different_collectives_is_discarded() -> None:
    """Rank 1 begins window 8 one collective later than rank 0, as torch's own counts show."""

    def counted(window: int, torch_count: int) -> list[Row]:
        rows = [collective(window * 100 + at, window * 100 + at + 5, sequence=at // 10) for at in (0, 10)]
        return [in_window(row, window, torch_count=torch_count if not row.sequence else 0) for row in rows]

    first = [*counted(0, 1), *counted(8, 9), *counted(16, 20)]
    second = [*counted(0, 1), *counted(8, 10), *counted(16, 20)]
    result = match(rank(0, *first, groups=[FSDP]), rank(1, *second, groups=[FSDP]))
    assert result.window.tolist() == [0, 0, 8, 8, 16, 16]
    assert result.complete.tolist() == [True, True, False, False, True, True]
    assert result.num_shifted == 1


def test_torchs_counts_of_earlier_trainings_may_differ() -> None:
    first, second = (
        [in_window(collective(at * 100, at * 100 + 5), at, torch_count=count + at) for at in (0, 8)] for count in (1, 7)
    )
    result = match(rank(0, *first, groups=[FSDP]), rank(1, *second, groups=[FSDP]))
    assert (result.complete.all(), result.num_shifted) == (True, 0)


def test_torchs_counts_do_not_compare_on_a_group_with_messages() -> None:
    """Rank 0 sent to another rank before, which torch counts on its side alone."""
    sent = message("send", 0, 5, peer=2)
    group_of_three = group("world", 0, 1, 2)
    rows = [in_window(collective(10, 20), 8, torch_count=count) for count in (2, 1, 2)]
    result = match(
        *(rank(at, *([sent] if at == 0 else []), row, groups=[group_of_three]) for at, row in enumerate(rows))
    )
    assert (result.complete.tolist(), result.num_shifted) == ([True, False], 0)


def test_equal_counts_in_two_groups_are_two_instances() -> None:
    rows = (collective(0, 10, group=0), collective(20, 40, group=1))
    result = match(rank(0, *rows, groups=[FSDP, WORLD]), rank(1, *rows, groups=[FSDP, WORLD]))
    assert sorted(result.transfer_ns.tolist()) == [10, 20]


def test_a_send_matches_its_receive() -> None:
    sender = rank(0, message("send", 50, 60, peer=1, tag=3), groups=[PP])
    receiver = rank(1, message("recv", 0, 60, peer=0, tag=3), groups=[PP])
    result = match(sender, receiver)
    assert result.transfer_ns.tolist() == [10]
    assert result.wait_ns.tolist() == [0, 50]
    assert result.channels == (Channel(PP.key, 0, 1, 3),)


def posted_ahead(*, sender_boot: str, receiver_boot: str) -> Instances:
    """Build a message that arrives at once, with a wait on the sending side only at the end of the step."""
    sender = rank(0, message("send", 50, 500, peer=1), groups=[PP], boot_id=sender_boot)
    return match(sender, rank(1, message("recv", 0, 60, peer=0), groups=[PP], boot_id=receiver_boot))


def test_a_transfer_on_one_clock_is_from_the_later_start_to_the_earlier_end() -> None:
    assert posted_ahead(sender_boot="a", receiver_boot="a").transfer_ns.tolist() == [10]


def test_only_durations_compare_between_hosts() -> None:
    assert posted_ahead(sender_boot="a", receiver_boot="b").transfer_ns.tolist() == [60]


def test_the_way_back_is_another_instance() -> None:
    first = rank(0, message("send", 0, 5, peer=1), message("recv", 5, 30, peer=1), groups=[PP])
    second = rank(1, message("recv", 0, 7, peer=0), message("send", 20, 30, peer=0), groups=[PP])
    assert sorted(match(first, second).transfer_ns.tolist()) == [5, 10]


def test_tags_and_counts_separate_messages_of_one_pair() -> None:
    first = rank(
        0,
        message("send", 0, 5, peer=1, tag=0, sequence=0),
        message("send", 0, 6, peer=1, tag=1, sequence=0),
        message("send", 0, 7, peer=1, tag=0, sequence=1),
        groups=[PP],
    )
    assert sorted(match(first, rank(1, groups=[PP])).transfer_ns.tolist()) == [5, 6, 7]


def test_an_end_seen_late_bounds_the_transfer_and_has_no_wait() -> None:
    result = pair(collective(0, 100, flags=Flag.DONE_BEFORE_WAIT), collective(70, 100))
    assert result.exact.tolist() == [True]
    assert result.wait_ns.tolist() == [0, 0]


def test_an_instance_with_only_late_seen_ends_is_not_exact() -> None:
    late = Flag.DONE_BEFORE_WAIT
    assert pair(collective(0, 100, flags=late), collective(70, 100, flags=late)).exact.tolist() == [False]


def test_a_missing_peer_makes_it_incomplete() -> None:
    result = match(rank(0, collective(0, 100), groups=[FSDP]))
    assert (result.complete.tolist(), result.transfer_ns.tolist()) == ([False], [100])


def test_open_and_raised_collectives_have_no_duration() -> None:
    result = pair(collective(0, OPEN), collective(70, 100, flags=Flag.RAISED))
    assert len(result) == len(result.number) == 0


def test_a_run_without_collectives_has_no_instances() -> None:
    run_timeline = timeline(rank(0, step(0, 0, 5), groups=[FSDP]), rank(1))
    result = match_instances(run_timeline)
    assert len(result) == 0
    assert result.find(run_timeline.ranks[0], np.zeros(2, dtype=RECORD_DTYPE)).tolist() == [-1, -1]


def test_an_unknown_instance_is_not_found() -> None:
    run_timeline = timeline(*(rank(r, collective(0, 100, sequence=4), groups=[FSDP, WORLD]) for r in (0, 1)))
    result, known = match_instances(run_timeline), run_timeline.ranks[0].main
    counted_on, elsewhere = known.copy(), known.copy()
    counted_on["sequence"], elsewhere["group"] = 5, 1
    assert [result.find(run_timeline.ranks[0], asked).tolist() for asked in (known, counted_on, elsewhere)] == [
        [0],
        [-1],
        [-1],
    ]


def test_a_collective_that_begins_in_an_evaluation_is_marked() -> None:
    calls = [collective(start, start + 5, sequence=n) for n, start in enumerate((0, 10, 39, 40))]
    result = match(rank(0, calls[0], phase(Phase.EVALUATION, 10, 40), *calls[1:], groups=[FSDP]))
    assert result.parts.evaluating.tolist() == [False, True, True, False]


@given(durations=st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), max_size=8))
@settings(deadline=None)
def test_every_instance_has_its_own_minimum(durations: list[list[int]]) -> None:
    of_three = group("fsdp", 0, 1, 2)
    ranks = [
        rank(r, *(collective(0, row[r], sequence=n) for n, row in enumerate(durations)), groups=[of_three])
        for r in range(3)
    ]
    result = match(*ranks)
    assert result.transfer_ns[result.sequence.argsort()].tolist() == [min(row) for row in durations]
    assert int(result.wait_ns.sum()) == sum(sum(row) - 3 * min(row) for row in durations)


parts = st.tuples(st.integers(0, 1), st.integers(0, 2), st.sampled_from([-7, 0, 2**30]), st.integers(1, 50))


@given(drawn=st.lists(parts, min_size=1, max_size=12, unique_by=lambda part: part[:3]))
@settings(deadline=None)
def test_two_different_keys_are_two_instances(drawn: list[tuple[int, int, int, int]]) -> None:
    """Rank 0 sends messages that differ only in (group, sequence, tag)."""
    rows = [message("send", 0, ns, peer=1, group=at, sequence=n, tag=tag) for at, n, tag, ns in drawn]
    run_timeline = timeline(rank(0, *rows, groups=[FSDP, PP]))
    result = match_instances(run_timeline)
    by_key: dict[tuple[int, int], list[int]] = defaultdict(list)
    for channel, n, transfer in zip(result.channel, result.sequence.tolist(), result.transfer_ns.tolist(), strict=True):
        by_key[n, result.channels[channel].tag].append(transfer)
    assert len(result) == len(drawn)
    assert {key: sorted(transfers) for key, transfers in by_key.items()} == {
        (n, tag): sorted(ns for _, m, other, ns in drawn if (m, other) == (n, tag)) for _, n, tag, _ in drawn
    }
    assert result.find(run_timeline.ranks[0], run_timeline.ranks[0].main).tolist() == result.number.tolist()
    assert sorted(result.number.tolist()) == list(range(len(drawn)))


def test_equal_counts_of_different_operations_are_not_one_collective() -> None:
    result = pair(collective(0, 100, name="barrier"), collective(70, 100, name="all_reduce"))
    assert (result.consistent.tolist(), result.complete.tolist()) == ([False], [False])
    assert (result.splits.tolist(), result.comparable.tolist()) == ([False], [False])


def test_two_parts_of_one_rank_are_not_a_whole_group() -> None:
    first = rank(0, collective(0, 10), collective(50, 60), groups=[FSDP])
    result = match(first, rank(1, collective(0, 10, sequence=7), groups=[FSDP]))
    assert (result.consistent.tolist(), result.complete.tolist()) == ([False, True], [False, False])


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
def test_ranks_that_record_differently_share_only_messages(states: tuple[str, str], parts: int) -> None:
    """Messages count alike on all ranks; a collective that one rank did not see shifts its later counts."""
    rows = ((message("send", 0, 5, peer=1), collective(5, 9)), (message("recv", 0, 5, peer=0), collective(5, 9)))
    ranks = [rank(number, *rows[number], groups=[WORLD]) for number in range(2)]
    observed = [
        replace(records, info=replace(records.info, probes={"collectives": state}))
        for records, state in zip(ranks, states, strict=True)
    ]
    result = match(*observed)
    of_messages = np.array([channel.direct for channel in result.channels])[result.channel]
    sizes = np.bincount(result.number)
    assert sizes[of_messages].tolist() == [2]
    assert sizes[~of_messages].tolist() == [parts] * (2 // parts)
    assert result.complete.tolist() == (sizes == 2).tolist()
    assert [
        result.find(records, records.of_kind(Kind.COLLECTIVE)).min() >= 0 for records in timeline(*observed).ranks
    ] == [True, True]
