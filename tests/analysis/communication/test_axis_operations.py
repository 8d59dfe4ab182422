"""Bytes, transfer, wait and bandwidth per axis, on collectives computed by hand."""

from dataclasses import replace

import pytest

from tests.timeline.build import Row, collective, group, message, rank, stall, step, timeline
from traincope.analysis import AxisOperation, MessageSize, analyze
from traincope.analysis.communication.call_sites import all_calls
from traincope.events import Flag
from traincope.store import RankRecords

FOUR = group("fsdp", 0, 1, 2, 3)
PP = group("pp", 0, 1)


def rows(*ranks: RankRecords, world_size: int | None = None) -> tuple[AxisOperation, ...]:
    return analyze(timeline(*ranks, world_size=world_size)).comm


def four(*calls: Row) -> list[RankRecords]:
    return [rank(number, step(0, 0, 100), call, groups=[FOUR]) for number, call in enumerate(calls)]


def test_sums_over_ranks_with_the_bandwidth_of_the_transfer() -> None:
    """Rank 3 is 30 late and the wire takes 20 for 4000 bytes: 200 B/ns x 3/4 on the bus."""
    calls = [collective(start, 80, num_bytes=4_000) for start in (30, 30, 30, 60)]
    stalled = [
        rank(number, step(0, 0, 100), call, stall(call, call.start_ns, 80), groups=[FOUR])
        for number, call in enumerate(calls)
    ]
    assert rows(*stalled) == (
        AxisOperation(
            axis="fsdp",
            operation="all_gather",
            count=4,
            num_bytes=16_000,
            transfer_ns=4 * 20,
            wait_ns=3 * 30,
            exposed_ns=50 + 50 + 50 + 20,
            bus_bandwidth=pytest.approx(150e9),
            largest_group=4,
            sizes=(MessageSize(max_bytes=4_096, count=4, transfer_ns=80, bus_bandwidth=pytest.approx(150e9)),),
        ),
    )


def test_sizes_are_grouped_by_powers_of_two() -> None:
    """4,096 and 2,049 bytes take 20 and 10: 6,145 / 30 = 204.8 B/ns x 3/4; 4,097 take 41: 99.9 x 3/4."""
    calls = [(0, 20, 4_096), (30, 40, 2_049), (50, 91, 4_097), (95, 96, 0)]
    gathers = [collective(start, end, num_bytes=of, sequence=at) for at, (start, end, of) in enumerate(calls)]
    (row,) = rows(*[rank(number, step(0, 0, 100), *gathers, groups=[FOUR]) for number in range(4)])
    assert row.sizes == (
        MessageSize(max_bytes=4_096, count=8, transfer_ns=4 * 30, bus_bandwidth=pytest.approx(6_145 / 30 * 0.75e9)),
        MessageSize(max_bytes=8_192, count=4, transfer_ns=4 * 41, bus_bandwidth=pytest.approx(4_097 / 41 * 0.75e9)),
    )


def test_communication_during_compute_is_not_exposed() -> None:
    (row,) = rows(*four(*[collective(30, 80)] * 4))
    assert (row.transfer_ns, row.wait_ns, row.exposed_ns) == (200, 0, 0)


def test_inexact_ends_give_no_bandwidth() -> None:
    late = collective(30, 80, num_bytes=4_000, flags=Flag.DONE_BEFORE_WAIT)
    (row,) = rows(*four(late, late, late, late))
    assert row.bus_bandwidth is None


def test_tiny_messages_give_no_bandwidth_for_large_ones() -> None:
    """Only the tiny ones have exact ends."""
    tiny = collective(30, 40, num_bytes=8)
    late = collective(50, 90, num_bytes=4_000, sequence=1, flags=Flag.DONE_BEFORE_WAIT)
    (row,) = rows(*[rank(number, step(0, 0, 100), tiny, late, groups=[FOUR]) for number in range(4)])
    assert (row.num_bytes, row.bus_bandwidth) == (4 * 4_008, None)


def test_collectives_with_a_missing_peer_give_no_bandwidth() -> None:
    """The shortest remaining part may be wait only."""
    (row,) = rows(*four(*[collective(30, 80, num_bytes=4_000)] * 4)[:3], world_size=4)
    assert (row.count, row.bus_bandwidth) == (3, None)


def test_a_barrier_gives_no_bandwidth() -> None:
    (row,) = rows(*four(*[collective(30, 80, name="barrier")] * 4))
    assert (row.num_bytes, row.bus_bandwidth) == (0, None)


def test_a_message_counts_on_both_sides() -> None:
    sent = message("send", 10, 20, peer=1, num_bytes=500)
    receive = message("recv", 0, 20, peer=0, num_bytes=500)
    result = rows(
        rank(0, step(0, 0, 100), sent, groups=[PP]),
        rank(1, step(0, 0, 100), receive, stall(receive, 0, 20), groups=[PP]),
    )
    assert [(row.operation, row.count, row.num_bytes, row.transfer_ns, row.wait_ns) for row in result] == [
        ("recv", 1, 500, 10, 10),
        ("send", 1, 500, 10, 0),
    ]


def test_the_warm_up_and_collectives_outside_steps_do_not_count() -> None:
    def calls() -> list[Row]:
        outside = collective(0, 5, sequence=0, at=-1)
        warm, counted = collective(20, 30, sequence=1, at=0), collective(60, 70, sequence=2, at=1)
        return [
            outside,
            step(0, 10, 50),
            warm,
            stall(warm, 20, 30),
            step(1, 50, 100),
            counted,
            stall(counted, 60, 70),
        ]

    two = group("dp", 0, 1)
    (row,) = rows(rank(0, *calls(), groups=[two]), rank(1, *calls(), groups=[two]))
    assert (row.count, row.transfer_ns, row.exposed_ns) == (2, 20, 20)


def test_axes_come_in_the_order_of_tables_and_the_most_exposed_operation_first() -> None:
    axes = [group("tp", 0, 1), group("dp", 0, 1)]
    reduce = collective(50, 80, name="all_reduce", group=1, sequence=1)
    calls = (collective(0, 10), collective(20, 30, group=1), reduce, stall(reduce, 50, 80))
    result = rows(*(rank(number, step(0, 0, 100), *calls, groups=axes) for number in (0, 1)))
    assert [(row.axis, row.operation) for row in result] == [
        ("dp", "all_reduce"),
        ("dp", "all_gather"),
        ("tp", "all_gather"),
    ]


def test_exposed_time_equals_the_ledgers() -> None:
    calls = [collective(start, 80) for start in (30, 30, 30, 60)]
    result = analyze(
        timeline(
            *(
                rank(number, step(0, 0, 100), call, stall(call, call.start_ns, 80), groups=[FOUR])
                for number, call in enumerate(calls)
            )
        )
    )
    wait, transfer = result.ledger.total("exposed_wait[fsdp]"), result.ledger.total("exposed_transfer[fsdp]")
    assert (wait, transfer) == (90, 80)
    assert [(row.wait_ns, row.exposed_ns) for row in result.comm] == [(90, 170)]


def test_a_wait_that_no_record_can_split_is_unknown() -> None:
    """Two of four ranks have records of the first call, and all of the second. One call that can be split is enough."""
    first, second = collective(30, 60), collective(70, 90, sequence=1)
    for calls, wait_ns in (((first,), None), ((first, second), 0)):
        ranks = [
            rank(
                number,
                step(0, 0, 100),
                *(event for call in mine for event in (call, stall(call, call.start_ns, call.end_ns))),
                groups=[FOUR],
            )
            for number, mine in enumerate((calls, calls, calls[1:], calls[1:]))
        ]
        (row,) = rows(*ranks)
        assert row.wait_ns == wait_ns
        assert row.exposed_transfer_ns == row.exposed_ns == 2 * 30 + 4 * 20 * (len(calls) - 1)
        (call,) = all_calls(analyze(timeline(*ranks)).calls)
        assert (call.known_wait_ns, call.exposed_ns) == (wait_ns, row.exposed_ns)


AXES = ("dp", "ep", "fsdp", "pp", "tp")


def test_fifty_thousand_names_and_five_axes_stay_separate() -> None:
    """Names of spans share a table with operations and shift their numbers: 5 x 50,004 exceeds an int16."""
    spans = [f"request {number}" for number in range(50_000)]
    operations = ("all_gather", "all_reduce", "scatter")
    calls = [
        collective(10 * at, 10 * at + 4, name=operation, group=at, sequence=at)
        for at in range(len(AXES))
        for operation in operations
    ]
    axes = [group(axis, 0, 1) for axis in AXES]
    of_two = []
    for number in (0, 1):
        stalled = [stall(call, call.start_ns + 1, call.end_ns) for call in calls]
        written = rank(number, step(0, 0, 100), *calls, *stalled, groups=axes)
        of_two.append(replace(written, names=(*written.names, *spans)))
    result = rows(*of_two)
    assert {(row.axis, row.operation) for row in result} == {(axis, name) for axis in AXES for name in operations}
