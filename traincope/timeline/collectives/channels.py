"""Channels: the communication paths on which ranks count. Channel and count identify an instance on all ranks."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints
from traincope.events import SEND_OPERATIONS, Flag
from traincope.timeline.intervals.numbering import Numbering
from traincope.timeline.intervals.painting import ABSENT
from traincope.timeline.observation import DISPATCHER
from traincope.timeline.timeline import RankTimeline

_COLLECTIVE, _SEND, _RECEIVE = 0, 1, 2


class Channel(NamedTuple):
    """A group, or one direction between two of its ranks under one tag."""

    group: str
    """Name that the group's members share."""
    source: int = ABSENT
    destination: int = ABSENT
    """`source`, `destination` and `tag` are set only for point-to-point operations."""
    tag: int = 0
    observation: str = DISPATCHER
    """How the rank records collectives: ranks that record differently count differently (`observation.py`)."""

    @property
    def direct(self) -> bool:
        """True if two ranks use it, not the whole group."""
        return self.source != ABSENT


def channels_of(rank: RankTimeline, records: NDArray[np.void]) -> tuple[list[Channel], Ints]:
    """Return the channels of a rank's COLLECTIVE or STALL records, and each record's position among them."""
    group = np.minimum(records["group"], max(len(rank.groups) - 1, 0)).astype(np.int64)
    side = _sides(rank, records)
    peers, peer = _numbered(np.where(side == _COLLECTIVE, ABSENT, records["peer"]))
    tags, tag = _numbered(np.where(side == _COLLECTIVE, 0, records["tag"]))
    codes, at = _numbered(((group * 3 + side) * len(peers) + peer) * len(tags) + tag)
    channels = []
    for code in codes.tolist():
        rest, tag_number = divmod(code, len(tags))
        rest, peer_number = divmod(rest, len(peers))
        channels.append(_channel(rank, *divmod(rest, 3), peer=int(peers[peer_number]), tag=int(tags[tag_number])))
    return channels, at


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values, and the position of each value among them."""
    numbering = Numbering.of(values.astype(np.int64))
    return numbering.values, numbering.number(values.astype(np.int64))


def _sides(rank: RankTimeline, records: NDArray[np.void]) -> Ints:
    sends = np.array([name in SEND_OPERATIONS for name in rank.names] + [False])
    is_send = sends[np.minimum(records["name"], len(rank.names))]
    direct = records["flags"] & Flag.POINT_TO_POINT > 0
    return np.where(direct, np.where(is_send, _SEND, _RECEIVE), _COLLECTIVE)


def _channel(rank: RankTimeline, group: int, side: int, *, peer: int, tag: int) -> Channel:
    name = rank.groups[group].key if group < len(rank.groups) else ""
    if side == _COLLECTIVE:
        return Channel(name, observation=rank.observation)
    source, destination = (rank.rank, peer) if side == _SEND else (peer, rank.rank)
    return Channel(name, source, destination, tag)
