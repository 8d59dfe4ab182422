"""Contention of axes, in cases computed by hand."""

from tests.timeline.build import Row, collective, group, rank, step, timeline
from traincope.analysis import Contention, analyze
from traincope.events import Flag

TP, FSDP = 0, 1
GROUPS = [group("tp", 0, 1), group("fsdp", 0, 1)]


def sent(group: int, *times: tuple[int, int], num_bytes: int = 64, flags: int = 0, first: int = 0) -> list[Row]:
    """Record all-reduces of one group, the same on both ranks."""
    return [
        collective(
            start, end, name="all_reduce", group=group, sequence=first + at, at=1, num_bytes=num_bytes, flags=flags
        )
        for at, (start, end) in enumerate(times)
    ]


def contention_by_axis(*calls: list[Row]) -> dict[str, tuple[Contention, ...]]:
    """Compute contention by axis. Both ranks make the same calls in step 1."""
    rows = [row for some in calls for row in some]
    ranks = [rank(number, step(0, -20, -10), step(1, 0, 1000), *rows, groups=GROUPS) for number in (0, 1)]
    return {row.axis: row.contention for row in analyze(timeline(*ranks)).comm}


def test_a_transfer_during_another_axis_is_compared_with_similar_ones_alone() -> None:
    """Alone 10, 12 and 14; during the other axis, from 100 to 200, 30 and 34: medians differ by 20, for four parts."""
    tp = sent(TP, (0, 10), (20, 32), (40, 54), (110, 140), (150, 184))
    assert contention_by_axis(tp, sent(FSDP, (100, 200), (300, 400))) == {
        "tp": (Contention(axis="fsdp", count=4, compared=4, extra_ns=4 * 20),),
        "fsdp": (),
    }


def test_a_transfer_that_another_joins_later_does_not_share_the_wire() -> None:
    """The other axis begins within it: on any wire others join long transfers more often."""
    tp = sent(TP, (0, 10), (90, 130))
    result = contention_by_axis(tp, sent(FSDP, (100, 150), (300, 350)))
    assert result["tp"] == ()
    assert result["fsdp"] == (Contention(axis="tp", count=2, compared=2, extra_ns=0),)


def test_contention_without_a_similar_transfer_alone_is_unknown() -> None:
    result = contention_by_axis(sent(TP, (110, 140), (150, 180)), sent(FSDP, (100, 200)))
    assert result["tp"] == (Contention(axis="fsdp", count=4, compared=0, extra_ns=None),)


def test_transfers_of_another_size_are_not_similar() -> None:
    """Small transfers alone give no evidence about a large one that shares the wire."""
    small, large = sent(TP, (0, 10), num_bytes=64), sent(TP, (110, 190), num_bytes=1 << 20, first=1)
    assert contention_by_axis(small, large, sent(FSDP, (100, 200)))["tp"] == (
        Contention(axis="fsdp", count=2, compared=0, extra_ns=None),
    )


def test_waiting_for_a_late_rank_is_not_on_the_wire() -> None:
    """Rank 0 calls fsdp at 100, rank 1 at 180: 20 ns on the wire, and tp from 120 to 130 is alone."""
    late = {0: 100, 1: 180}
    ranks = [
        rank(
            number,
            step(0, -20, -10),
            step(1, 0, 1000),
            *sent(TP, (120, 130), (150, 160)),
            *sent(FSDP, (start, 200)),
            groups=GROUPS,
        )
        for number, start in late.items()
    ]
    assert [row.contention for row in analyze(timeline(*ranks)).comm] == [(), ()]


def test_a_transfer_with_an_inexact_end_is_neither_shared_nor_alone() -> None:
    """The time of fsdp on the wire between 100 and 200 is unknown: tp in it may have been alone."""
    bounded = sent(FSDP, (100, 200), flags=Flag.ASYNC | Flag.DONE_BEFORE_WAIT)
    tp = sent(TP, (0, 10), (110, 140), (310, 345))
    assert contention_by_axis(tp, bounded, sent(FSDP, (300, 400), first=1))["tp"] == (
        Contention(axis="fsdp", count=2, compared=2, extra_ns=2 * (35 - 10)),
    )


def test_the_warm_up_is_neither_counted_nor_compared() -> None:
    """In step 0 tp runs alone and with fsdp; in step 1 only with fsdp."""
    warm_up = [
        collective(start, end, name="all_reduce", group=TP, sequence=8 + at, at=0, num_bytes=64)
        for at, (start, end) in enumerate([(-18, -16), (-15, -11)])
    ]
    result = contention_by_axis(warm_up, sent(FSDP, (100, 200)), sent(TP, (110, 140)))
    assert result["tp"] == (Contention(axis="fsdp", count=2, compared=0, extra_ns=None),)
