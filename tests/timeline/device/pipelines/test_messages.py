"""Messages on the GPUs by marks, computed by hand. Times are in us."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.timeline.build import group, message, rank, timeline
from traincope.events import NOT_MARKED, Flag, Kind
from traincope.timeline.device.marked.messages import messages

US = 1_000
Wire = dict[int, list[tuple[str, int, float, float, bool]]]
"""Rank -> operation, peer, begin and end of each message, and whether marks show both."""


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A message as one rank's marks show it."""

    operation: str
    peer: int
    issued: int | None
    ended: int
    """End of the wait."""
    exact: bool = True
    batched: bool = False
    sequence: int = 0


def on_wire(*ranks: Sequence[Marked]) -> Wire:
    """Return the messages of the ranks, each in the order of its host."""
    rows = [
        [message(each.operation, at, at + 1, peer=each.peer, sequence=each.sequence) for at, each in enumerate(of_rank)]
        for of_rank in ranks
    ]
    built = timeline(
        *(rank(number, *of_rank, groups=[group("pp", *range(len(ranks)))]) for number, of_rank in enumerate(rows))
    )
    stalls = [_stalls(each.main, of_rank) for each, of_rank in zip(built.ranks, ranks, strict=True)]
    shown = messages(list(zip(built.ranks, stalls, strict=True)))
    return {
        each.rank: [
            (
                each.name(int(record["name"])),
                int(record["peer"]),
                record["start_ns"] / US,
                record["end_ns"] / US,
                not record["flags"] & Flag.DONE_BEFORE_WAIT,
            )
            for record in shown[each.rank]
        ]
        for each in built.ranks
    }


def _stalls(main: NDArray[np.void], marked: Sequence[Marked]) -> NDArray[np.void]:
    stalls: NDArray[Any] = main[main["kind"] == Kind.COLLECTIVE].copy()
    stalls["kind"] = Kind.STALL
    for record, each in zip(stalls, marked, strict=True):
        record["start_ns"] = record["end_ns"] = each.ended * US
        record["value"] = NOT_MARKED if each.issued is None else (each.ended - each.issued) * US
        record["flags"] |= np.uint16(
            (0 if each.exact else Flag.DONE_BEFORE_WAIT) | (Flag.BATCHED if each.batched else 0)
        )
    return stalls


def test_a_message_lasts_from_its_later_begin_to_the_end_that_its_receiver_sees() -> None:
    """The sender waits for it long after."""
    sent = Marked(operation="send", peer=1, issued=100, ended=900, exact=False)
    received = Marked(operation="recv", peer=0, issued=30, ended=150)
    assert on_wire([sent], [received]) == {0: [("send", 1, 100, 150, True)], 1: [("recv", 0, 30, 150, True)]}


def test_a_message_whose_end_no_rank_sees_has_an_upper_bound() -> None:
    sent = Marked(operation="send", peer=1, issued=100, ended=900, exact=False)
    received = Marked(operation="recv", peer=0, issued=30, ended=400, exact=False)
    assert on_wire([sent], [received]) == {0: [("send", 1, 100, 400, False)], 1: [("recv", 0, 30, 400, False)]}


def test_a_message_whose_issue_has_no_mark_on_one_rank_is_not_shown() -> None:
    sent = Marked(operation="send", peer=1, issued=None, ended=900)
    received = Marked(operation="recv", peer=0, issued=30, ended=400)
    assert on_wire([sent], [received]) == {0: [], 1: []}


def test_a_message_begins_after_the_one_before_it_between_the_same_ranks() -> None:
    """The receiver sees the end of both; the sender of none."""
    sent = [
        Marked(operation="send", peer=1, issued=issued, ended=900, exact=False, sequence=number)
        for number, issued in enumerate((10, 20))
    ]
    received = [
        Marked(operation="recv", peer=0, issued=10, ended=100),
        Marked(operation="recv", peer=0, issued=100, ended=130, sequence=1),
    ]
    assert on_wire(sent, received)[0] == [("send", 1, 10, 100, True), ("send", 1, 100, 130, True)]


def test_a_begin_that_depends_on_the_streams_of_messages_is_not_shown() -> None:
    """Rank 1 sends to rank 2 until 80, and has issued a receive from rank 0 at 20. On one stream, that begins at 80.

    Rank 0 sends at 50: the message takes 50 or 20 us. Sent at 90 it takes 10 us, whatever the streams are.
    """
    to_last = Marked(operation="send", peer=2, issued=10, ended=900, exact=False)
    last = Marked(operation="recv", peer=1, issued=5, ended=80)
    received = Marked(operation="recv", peer=0, issued=20, ended=100)
    for issued, shown in ((50, False), (90, True)):
        sent = Marked(operation="send", peer=1, issued=issued, ended=100)
        wire = on_wire([sent], [to_last, received], [last])
        assert wire[0] == [("send", 1, issued, 100, shown)]
        assert wire[1] == [("send", 2, 10, 80, True), ("recv", 0, 20, 100, shown)]


def test_the_messages_of_a_batch_begin_and_end_together() -> None:
    sides = [
        [
            Marked(operation="send", peer=1 - rank, issued=issued, ended=70),
            Marked(operation="recv", peer=1 - rank, issued=issued, ended=70, batched=True),
        ]
        for rank, issued in ((0, 10), (1, 40))
    ]
    assert on_wire(*sides) == {
        0: [("send", 1, 10, 70, True), ("recv", 1, 10, 70, True)],
        1: [("send", 0, 40, 70, True), ("recv", 0, 40, 70, True)],
    }


def test_a_batch_does_not_cross_ranks() -> None:
    """The batch of rank 1 began with a message of another axis, which is not among these."""
    sent = Marked(operation="send", peer=1, issued=100, ended=150)
    received = Marked(operation="recv", peer=0, issued=30, ended=150, batched=True)
    assert on_wire([sent], [received]) == {0: [("send", 1, 100, 150, True)], 1: [("recv", 0, 30, 150, True)]}
