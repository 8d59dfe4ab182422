"""A segment is read while it is written: each event once, and again until it ended."""

from pathlib import Path

import numpy as np
import pytest

from traincope.events import OPEN, Kind
from traincope.live.node.tail import SETTLING_NS, SegmentTail
from traincope.record.segments.slots import add_flag, end
from traincope.record.segments.writer import Shared, ThreadWriter
from traincope.store.segments.segments import read_segment


def writer_in(directory: Path) -> ThreadWriter:
    return ThreadWriter(Shared(directory, segments_per_thread=4), thread="main")


def test_a_read_returns_new_events_and_updates_open_ones(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    first = writer.begin(Kind.PHASE)
    tail = SegmentTail(tmp_path / "main-00000.seg")
    assert tail.read(now_ns=0)["kind"].tolist() == [Kind.CLOCK, Kind.PHASE]
    second = writer.begin(Kind.SPAN)
    end(first)
    assert tail.read(now_ns=1)["kind"].tolist() == [Kind.SPAN]
    assert (tail.records["end_ns"] == OPEN).tolist() == [False, False, True]
    end(second)
    assert len(tail.read(now_ns=2)) == 0
    assert tail.records.tobytes() == read_segment(tail.path).records.tobytes()
    writer.close()


def test_a_flag_written_after_the_end_is_read(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    slot = writer.begin(Kind.STEP)
    end(slot)
    tail = SegmentTail(tmp_path / "main-00000.seg")
    tail.read(now_ns=int(slot[0][slot[1]]))
    add_flag(slot, 64)
    tail.read(now_ns=int(slot[0][slot[1]]) + 2 * SETTLING_NS)
    assert tail.records["flags"].tolist() == [0, 64]
    add_flag(slot, 1)
    tail.read(now_ns=int(slot[0][slot[1]]) + 3 * SETTLING_NS)
    assert tail.records["flags"].tolist() == [0, 64]  # settled: flags are not read again
    writer.close()


def test_events_beyond_one_chunk_are_read(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    for value in range(3000):
        writer.write(Kind.MEMORY, value, value, value=value)
    tail = SegmentTail(tmp_path / "main-00000.seg")
    assert tail.read(now_ns=0)["value"][1:].tolist() == list(range(3000))
    assert tail.num_read == 3001
    writer.close()


@pytest.mark.parametrize(("unwritten", "garbled"), [(1, 0), (2, 2)])
def test_an_unwritten_event_does_not_hide_later_ones(tmp_path: Path, unwritten: int, garbled: int) -> None:
    """A signal handler may raise between reserving and writing, which is no damage. That leaves one event empty."""
    writer = writer_in(tmp_path)
    tail = SegmentTail(tmp_path / "main-00000.seg")
    end(writer.begin(Kind.SPAN))
    for _ in range(unwritten):
        writer._place[2]()  # reserve the next slot without writing
    for value in range(3000):
        writer.write(Kind.MEMORY, value, value, value=value)
    assert tail.read(now_ns=0)["value"][2:].tolist() == list(range(3000))
    writer.close()
    segment = read_segment(tail.path)
    assert (len(segment.records), segment.garbled) == (3002, garbled)


def test_ended_events_are_released_and_open_ones_kept(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    for start, stop in ((10, 20), (10, OPEN), (10, 50), (40, 50)):
        writer.write(Kind.PHASE, start, stop)
    tail = SegmentTail(tmp_path / "main-00000.seg")
    tail.read(now_ns=0)
    assert tail.release(40)["end_ns"].tolist() == [20]
    assert tail.records["end_ns"][1:].tolist() == [OPEN, 50, 50]
    writer.write(Kind.PHASE, 60, 70)
    tail.read(now_ns=1)
    assert tail.records["end_ns"][1:].tolist() == [OPEN, 50, 50, 70]
    writer.close()


def test_an_invalid_event_is_skipped(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.write(Kind.PHASE, 100, 50)
    writer.write(Kind.PHASE, 100, 150)
    tail = SegmentTail(tmp_path / "main-00000.seg")
    new = tail.read(now_ns=0)
    assert new["end_ns"][1:].tolist() == [150]
    assert np.array_equal(tail.records, new)
    writer.close()
