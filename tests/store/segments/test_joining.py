"""Own records of a rank with copies after them: nothing is joined over a hole, and no late record is lost."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincope.events import Kind
from traincope.store.segments.joining import MAX_RECORDS, continued, held_since_ns, in_one
from traincope.store.segments.segments import RECORD_DTYPE, SegmentRecords

S = 1_000_000_000


def span(start_s: float, end_s: float, kind: Kind = Kind.SPAN) -> NDArray[np.void]:
    record = np.zeros(1, dtype=RECORD_DTYPE)
    record["kind"], record["start_ns"], record["end_ns"] = kind, round(start_s * S), round(end_s * S)
    return record


def each_second(begin_s: int, end_s: int) -> list[NDArray[np.void]]:
    return [span(at, at + 0.5) for at in range(begin_s, end_s)]


def segment(thread: str, records: list[NDArray[np.void]], *, cut: bool = False) -> SegmentRecords:
    return SegmentRecords(thread=thread, index=0, records=np.concatenate(records), lost_bytes=0, cut=cut)


def starts_s(segments: tuple[SegmentRecords, ...], thread: str) -> list[float]:
    return [float(at) / S for each in segments if each.thread == thread for at in each.records["start_ns"]]


def test_a_thread_whose_shipping_was_cut_is_not_continued_over_the_hole() -> None:
    """The round shipped `thread-1` up to 58 s, but `main` only up to 30 s. The copy begins at 54.5 s."""
    own = [segment("main", each_second(0, 30)), segment("thread-1", each_second(0, 58))]
    whole = continued(own, [segment("main", each_second(55, 60)), segment("thread-1", each_second(55, 60))])
    assert whole is not None
    assert whole.holes == ("main",)
    assert starts_s(whole.segments, "main") == [*range(30)]
    assert starts_s(whole.segments, "thread-1") == [*range(60)]


def test_an_idle_thread_without_new_records_has_no_hole() -> None:
    own = [segment("main", each_second(0, 58)), segment("thread-1", [span(1, 1, Kind.CLOCK), span(2, 3)])]
    whole = continued(own, [segment("main", each_second(55, 60)), segment("thread-1", [span(1, 1, Kind.CLOCK)])])
    assert whole is not None
    assert whole.holes == ()
    assert starts_s(whole.segments, "thread-1") == [1, 2]


def test_a_thread_that_begins_in_the_copy_is_added_and_an_older_one_is_a_hole() -> None:
    own = [segment("main", each_second(0, 58))]
    begun = segment("thread-1", [span(57, 57, Kind.CLOCK), span(57.5, 58)])
    older = segment("thread-2", [span(20, 20, Kind.CLOCK), span(57.5, 58)])
    whole = continued(own, [segment("main", each_second(55, 60)), begun, older])
    assert whole is not None
    assert whole.holes == ("thread-2",)
    assert starts_s(whole.segments, "thread-1") == [57, 57.5]


def test_a_record_that_was_written_after_its_round_of_shipping_is_added() -> None:
    """Kernels that began at 28.5 s ended later than the last shipped record had begun."""
    own = [segment("main", each_second(0, 30))]
    late = span(28.5, 28.9)
    whole = continued(own, [segment("main", [*each_second(26, 34), late])])
    assert whole is not None
    assert sorted(starts_s(whole.segments, "main")) == sorted([*range(34), 28.5])


def test_a_late_record_does_not_let_a_copy_that_was_cut_off_reach_further_back() -> None:
    """2,000 records per second: the copy begins at 100 s. Records of 97 s were written at its begin and its end."""
    records = [span(100 + at / 2_000, 100 + at / 2_000) for at in range(MAX_RECORDS - 2)]
    assert held_since_ns([segment("main", [*records, span(97, 98)])]) >= 100 * S
    assert held_since_ns([segment("main", [span(97, 98), *records])]) >= 100 * S


def test_a_copy_that_is_marked_as_cut_holds_only_what_follows_its_first_record() -> None:
    few = each_second(100, 103)
    assert held_since_ns([segment("main", few)]) == round(97.5 * S)
    assert held_since_ns([segment("main", few, cut=True)]) >= 100 * S


def test_copies_of_an_earlier_chain_come_before_later_ones_whatever_their_index() -> None:
    earlier = replace(segment("main", each_second(20, 25)), index=3)
    (main,) = in_one([segment("main", each_second(50, 55)), earlier])
    assert starts_s((main,), "main") == [*range(50, 55)]
