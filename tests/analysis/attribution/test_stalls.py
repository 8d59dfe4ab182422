"""Stalls are wait until the collective's transfer can have begun, then transfer."""

from dataclasses import dataclass

import numpy as np

from tests.timeline.build import Row, collective, group, message, rank, stall, step, timeline
from traincope.analysis.attribution.stalls import split_stalls
from traincope.analysis.attribution.thread_slices import slice_thread
from traincope.events import Flag
from traincope.timeline import match_instances

FSDP, PP = group("fsdp", 0, 1), group("pp", 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    wait_ns: int
    transfer_ns: int
    ambiguous_waits_ns: int


def split(first: list[Row], peers: list[Row]) -> Sums:
    """Sum rank 0's stalls. `peers` are the records of rank 1."""
    groups = [FSDP, PP]
    result = timeline(rank(0, step(0, 0, 1000), *first, groups=groups), rank(1, *peers, groups=groups))
    slices = slice_thread(result.ranks[0], window_ends=np.empty(0, dtype=np.int64))
    parts = split_stalls(result.ranks[0], slices, instances=match_instances(result))
    assert np.array_equal(parts.at, np.flatnonzero(slices.stalled))
    assert np.array_equal(parts.wait_ns + parts.transfer_ns, slices.duration_ns[parts.at])
    return Sums(
        wait_ns=int(parts.wait_ns.sum()),
        transfer_ns=int(parts.transfer_ns.sum()),
        ambiguous_waits_ns=int(parts.transfer_ns[~parts.split].sum()),
    )


def test_an_early_rank_waits_for_the_late_rank() -> None:
    """Rank 1 is 70 late and the wire takes 30: the first 60 of the stall [10, 100] are wait."""
    first = collective(0, 100)
    assert split([first, stall(first, 10, 100)], [collective(70, 100)]) == Sums(
        wait_ns=60, transfer_ns=30, ambiguous_waits_ns=0
    )


def test_the_late_rank_itself_only_transfers() -> None:
    first = collective(70, 100)
    assert split([first, stall(first, 70, 100)], [collective(0, 100)]) == Sums(
        wait_ns=0, transfer_ns=30, ambiguous_waits_ns=0
    )


def test_a_stall_that_begins_during_the_transfer_is_transfer() -> None:
    first = collective(0, 100)
    assert split([first, stall(first, 80, 100)], [collective(70, 100)]) == Sums(
        wait_ns=0, transfer_ns=20, ambiguous_waits_ns=0
    )


def test_a_stall_that_lasts_beyond_the_end_is_transfer() -> None:
    first = collective(0, 100)
    assert split([first, stall(first, 90, 110)], [collective(70, 100)]) == Sums(
        wait_ns=0, transfer_ns=20, ambiguous_waits_ns=0
    )


def test_a_receive_waits_for_its_send() -> None:
    """The message is sent at 90 and arrives at 100."""
    first = message("recv", 0, 100, peer=1, group=1)
    second = message("send", 90, 105, peer=0, group=1)
    assert split([first, stall(first, 0, 100)], [second]) == Sums(wait_ns=90, transfer_ns=10, ambiguous_waits_ns=0)


def test_a_stall_without_the_peers_record_cannot_be_split() -> None:
    first = collective(0, 100)
    assert split([first, stall(first, 10, 100)], []) == Sums(wait_ns=0, transfer_ns=90, ambiguous_waits_ns=90)


def test_a_rank_waits_for_a_late_peer_whose_end_was_seen_late() -> None:
    """Rank 1 joins at 70 and waits only at 400. On one clock, rank 0 waits until 70 and the rest is transfer."""
    first, second = collective(0, 100), collective(70, 400, flags=Flag.DONE_BEFORE_WAIT)
    assert split([first, stall(first, 10, 100)], [second]) == Sums(wait_ns=60, transfer_ns=30, ambiguous_waits_ns=0)


def test_a_stall_without_a_record_of_its_call_cannot_be_split() -> None:
    """Both parts of the all-gather are rank 1's: they give no evidence about a stall of rank 0."""
    lost = collective(0, 100)
    assert split([stall(lost, 10, 100)], [lost, lost]) == Sums(wait_ns=0, transfer_ns=90, ambiguous_waits_ns=90)
