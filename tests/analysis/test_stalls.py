"""A stall is waiting until the collective's transfer could have begun, then transfer."""

from dataclasses import dataclass

import numpy as np

from tests.timeline.build import Row, collective, group, message, rank, stall, step, timeline
from traincope.analysis.host import cut
from traincope.analysis.stalls import split_stalls
from traincope.events import Flag
from traincope.timeline import match_instances

FSDP, PP = group("fsdp", 0, 1), group("pp", 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    wait_ns: int
    transfer_ns: int
    unsplit_ns: int


def split(mine: list[Row], peers: list[Row]) -> Sums:
    """Sums of rank 0's stalls; `peers` is what rank 1 recorded."""
    groups = [FSDP, PP]
    found = timeline(rank(0, step(0, 0, 1000), *mine, groups=groups), rank(1, *peers, groups=groups))
    pieces = cut(found.ranks[0], window_ends=np.empty(0, dtype=np.int64))
    parts = split_stalls(found.ranks[0], pieces, instances=match_instances(found))
    assert np.array_equal(parts.at, np.flatnonzero(pieces.stalled))
    assert np.array_equal(parts.wait_ns + parts.transfer_ns, pieces.duration_ns[parts.at])
    return Sums(
        wait_ns=int(parts.wait_ns.sum()),
        transfer_ns=int(parts.transfer_ns.sum()),
        unsplit_ns=int(parts.transfer_ns[~parts.split].sum()),
    )


def test_a_rank_that_came_early_waits_for_the_late_one() -> None:
    """Rank 1 comes 70 late; the wire takes 30: of the stall [10, 100] the first 60 are waiting."""
    mine = collective(0, 100)
    assert split([mine, stall(mine, 10, 100)], [collective(70, 100)]) == Sums(wait_ns=60, transfer_ns=30, unsplit_ns=0)


def test_the_late_rank_itself_only_transfers() -> None:
    mine = collective(70, 100)
    assert split([mine, stall(mine, 70, 100)], [collective(0, 100)]) == Sums(wait_ns=0, transfer_ns=30, unsplit_ns=0)


def test_who_asks_after_the_transfer_began_waits_for_nobody() -> None:
    mine = collective(0, 100)
    assert split([mine, stall(mine, 80, 100)], [collective(70, 100)]) == Sums(wait_ns=0, transfer_ns=20, unsplit_ns=0)


def test_a_stall_that_lasts_beyond_the_end_is_transfer() -> None:
    mine = collective(0, 100)
    assert split([mine, stall(mine, 90, 110)], [collective(70, 100)]) == Sums(wait_ns=0, transfer_ns=20, unsplit_ns=0)


def test_a_receive_waits_for_its_send() -> None:
    """Sent at 90, there at 100."""
    mine = message("recv", 0, 100, peer=1, group=1)
    theirs = message("send", 90, 105, peer=0, group=1)
    assert split([mine, stall(mine, 0, 100)], [theirs]) == Sums(wait_ns=90, transfer_ns=10, unsplit_ns=0)


def test_without_the_peers_record_nothing_can_be_split() -> None:
    mine = collective(0, 100)
    assert split([mine, stall(mine, 10, 100)], []) == Sums(wait_ns=0, transfer_ns=90, unsplit_ns=90)


def test_a_late_peer_whose_end_was_seen_late_still_is_what_the_others_wait_for() -> None:
    """Rank 1 joins at 70 and looks at 400 only; on one clock, rank 0 waits until 70 and the transfer is the rest."""
    mine, theirs = collective(0, 100), collective(70, 400, flags=Flag.DONE_BEFORE_WAIT)
    assert split([mine, stall(mine, 10, 100)], [theirs]) == Sums(wait_ns=60, transfer_ns=30, unsplit_ns=0)


def test_a_stall_whose_own_call_was_lost_cannot_be_split() -> None:
    """Both parts of the all-gather are rank 1's: whose wait a stall of rank 0 was, they cannot tell."""
    lost = collective(0, 100)
    assert split([stall(lost, 10, 100)], [lost, lost]) == Sums(wait_ns=0, transfer_ns=90, unsplit_ns=90)
