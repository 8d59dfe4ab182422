"""The segment writer: its records can be read, stay within the budget, and survive a lack of space."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from traincope.events import OPEN, RECORD_BYTES, Flag, Kind, Phase
from traincope.record.segments import writer as writing
from traincope.record.segments.slots import add_flag, end, end_abandoned, end_at
from traincope.record.segments.writer import CAPACITY, Shared, ThreadWriter
from traincope.store.segments.segments import HEADER_BYTES, Directories, read_segment


def make_writer(directory: Path, *, segments: int = 4) -> tuple[Shared, ThreadWriter]:
    shared = Shared(directory, segments_per_thread=segments)
    return shared, ThreadWriter(shared, thread="main")


def test_a_record_is_open_until_its_end(tmp_path: Path) -> None:
    _, writer = make_writer(tmp_path)
    slot = writer.begin(Kind.SPAN, 0, 7)
    path = tmp_path / "main-00000.seg"
    clock, span = read_segment(path).records
    assert (clock["kind"], span["kind"], span["name"], span["end_ns"]) == (Kind.CLOCK, Kind.SPAN, 7, OPEN)
    end(slot)
    span = read_segment(path).records[1]
    assert span["end_ns"] >= span["start_ns"] > 0


def test_an_abandoned_record_ends_where_its_hook_was_interrupted(tmp_path: Path) -> None:
    """A record that began after the interruption is not abandoned, and a closed one keeps its end."""
    _, writer = make_writer(tmp_path)
    before, closed = writer.begin(Kind.SPAN), writer.begin(Kind.SPAN)
    end_at(closed, closed_ns := time.monotonic_ns())
    interrupted_ns = time.monotonic_ns()
    after = writer.begin(Kind.SPAN)
    for slot in (before, closed, after):
        end_abandoned(slot, interrupted_ns)
    writer.close()
    _clock, *ends = read_segment(tmp_path / "main-00000.seg").records["end_ns"].tolist()
    assert ends == [interrupted_ns, closed_ns, OPEN]


def test_every_field_comes_back(tmp_path: Path) -> None:
    shared, writer = make_writer(tmp_path)
    shared.step = 12
    slot = writer.write(Kind.STALL, 100, 250, Phase.NONE, 1, 2, 3, 4, 5, 1 << 40, Flag.POINT_TO_POINT, 8)
    add_flag(slot, Flag.RAISED)
    end_at(slot, 260)
    record = read_segment(tmp_path / "main-00000.seg").records[1]
    assert {name: int(record[name]) for name in record.dtype.names} == {
        "start_ns": 100,
        "end_ns": 260,
        "value": 1 << 40,
        "step": 12,
        "name": 1,
        "group": 2,
        "sequence": 3,
        "peer": 4,
        "tag": 5,
        "window": 8,
        "flags": Flag.POINT_TO_POINT | Flag.RAISED,
        "phase": Phase.NONE,
        "kind": Kind.STALL,
    }


def test_a_span_may_outlast_the_segment_it_began_in(tmp_path: Path) -> None:
    _, writer = make_writer(tmp_path)
    outer = writer.begin(Kind.SPAN, 0, 1)
    for _ in range(CAPACITY):
        end(writer.begin(Kind.SPAN, 0, 2))
    end(outer)
    writer.close()
    first, second = (read_segment(tmp_path / f"main-0000{i}.seg").records for i in (0, 1))
    assert len(first) == CAPACITY
    assert first[1]["end_ns"] >= second[1]["start_ns"]


def test_the_disk_budget_keeps_the_first_and_the_newest_and_counts_the_rest(tmp_path: Path) -> None:
    shared, writer = make_writer(tmp_path, segments=3)
    for _ in range(5 * CAPACITY):
        end(writer.begin(Kind.SPAN, 0, 1))
    writer.close()
    kept = sorted(path.name for path in tmp_path.glob("*.seg"))
    assert len(kept) == 3
    assert kept[0] == "main-00000.seg"
    noted = sum(
        int(records["value"][records["kind"] == Kind.DROPPED].sum())
        for records in (read_segment(path).records for path in tmp_path.glob("*.seg"))
    )
    assert shared.dropped == 3 * CAPACITY
    assert 0 < noted <= shared.dropped


def test_closing_releases_unused_space(tmp_path: Path) -> None:
    shared, writer = make_writer(tmp_path)
    end(writer.begin(Kind.SPAN, 0, 1))
    writer.close()
    assert (tmp_path / "main-00000.seg").stat().st_size == 4096 + 2 * RECORD_BYTES
    assert shared.written == 2
    end(writer.begin(Kind.SPAN, 0, 1))
    assert len(read_segment(tmp_path / "main-00000.seg").records) == 2


FULL_DISK = """
import resource, sys
from pathlib import Path
from traincope.events import Kind
from traincope.record.segments import writer as writing
from traincope.record.segments.slots import end
from traincope.record.segments.writer import Shared, ThreadWriter

writing.RETRY_NS = 0
directory = Path(sys.argv[1])
shared = Shared(directory, segments_per_thread=4)
writer = ThreadWriter(shared, thread="main")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for _ in range(3):
    end(writer.begin(Kind.SPAN, 0, 1))
assert shared.dropped == 3, shared.dropped
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
end(writer.begin(Kind.SPAN, 0, 2))
writer.close()
"""


@pytest.mark.parametrize(
    ("cut", "num_lost"), [(Path.unlink, 3), (lambda path: os.truncate(path, HEADER_BYTES + 2 * RECORD_BYTES), 1)]
)
def test_what_the_last_segment_lost_is_noted_in_one_more(
    tmp_path: Path, cut: Callable[[Path], None], num_lost: int
) -> None:
    """The header and two of three records remain."""
    shared, writer = make_writer(tmp_path)
    for _ in range(2):
        end(writer.begin(Kind.SPAN))
    cut(tmp_path / "main-00000.seg")
    writer.close()
    _clock, dropped = read_segment(tmp_path / "main-00001.seg").records
    assert (dropped["kind"], dropped["value"], shared.dropped) == (Kind.DROPPED, num_lost, num_lost)


def test_a_full_disk_drops_records_and_spares_the_process(tmp_path: Path) -> None:
    """The file size limit makes posix_fallocate fail as a full disk does."""
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, timeout=150)
    records = read_segment(tmp_path / "main-00000.seg").records
    assert [int(kind) for kind in records["kind"]] == [Kind.CLOCK, Kind.DROPPED, Kind.SPAN]
    assert records["value"][1] == 3
    assert records["name"][2] == 2


def test_after_a_failure_the_writer_retries_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def refuse(path: Path, **_: object) -> None:
        tries.append(path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "SegmentFile", refuse)
    shared, writer = make_writer(tmp_path)
    for _ in range(1000):
        end(writer.begin(Kind.SPAN, 0, 1))
    assert len(tries) <= 2
    assert shared.dropped == 1000


def test_memory_stays_at_one_segment(tmp_path: Path) -> None:
    _, writer = make_writer(tmp_path, segments=64)
    for _ in range(2 * CAPACITY):
        end(writer.begin(Kind.SPAN, 0, 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20 * CAPACITY):
        end(writer.begin(Kind.SPAN, 0, 1))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 * 1024, "KiB"


def test_a_signal_handler_that_fills_the_segment_does_not_misplace_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal may arrive between any two calls. Every record must still end where it began."""
    monkeypatch.setattr(writing, "CAPACITY", 16)
    shared, writer = make_writer(tmp_path, segments=100_000)
    begun, filling = 8_000, True

    def fill(*_: object) -> None:
        nonlocal begun
        for _ in range(20):
            begun += 1
            end(writer.begin(Kind.SPAN, 0, 2))
        if filling:  # Python may call it once more after the timer has stopped
            # After this signal ended: a slow machine would do nothing but handle signals.
            signal.setitimer(signal.ITIMER_REAL, 2e-4)

    before = signal.signal(signal.SIGALRM, fill)
    signal.setitimer(signal.ITIMER_REAL, 2e-4)
    try:
        for _ in range(8_000):
            end(writer.begin(Kind.SPAN, 0, 1))
    finally:
        filling = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    writer.close()
    segments = [read_segment(path).records for path in tmp_path.glob("*.seg")]
    spans = np.concatenate([records[records["kind"] == Kind.SPAN] for records in segments])
    assert len(spans) + shared.dropped >= begun > 8_000  # clocks between them may be dropped as well
    assert len(spans) > 1_000
    assert (spans["end_ns"] >= spans["start_ns"]).all()


def test_records_of_the_garbage_collector_between_two_segments_go_to_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, collected = writing.SegmentFile, iter([0, 3, 5])

    def collect(path: Path, *, capacity: int, directories: Directories) -> writing.SegmentFile:
        for _ in range(next(collected)):
            end(writer.begin(Kind.PHASE, Phase.GC, 2))
        if path.name == "main-00002.seg":
            raise OSError(28, "No space left on device")
        return make(path, capacity=capacity, directories=directories)

    monkeypatch.setattr(writing, "CAPACITY", 8)
    monkeypatch.setattr(writing, "SegmentFile", collect)
    shared, writer = make_writer(tmp_path)
    for _ in range(7 + 4):
        end(writer.begin(Kind.SPAN, 0, 1))
    second = read_segment(tmp_path / "main-00001.seg").records
    assert second["kind"].tolist() == [Kind.CLOCK, *3 * [Kind.PHASE], *4 * [Kind.SPAN]]
    assert ((second["start_ns"] > 0) & (second["end_ns"] >= second["start_ns"])).all()
    assert shared.dropped == 0
    end(writer.begin(Kind.SPAN, 0, 1))
    assert shared.dropped == 5 + 1


def test_a_thread_continues_after_its_writer_was_closed(tmp_path: Path) -> None:
    """The thread that leaves the `with` closes all writers, whatever their threads do."""
    interval, raised = sys.getswitchinterval(), list[BaseException]()
    sys.setswitchinterval(1e-5)

    def write(writer: ThreadWriter) -> None:
        try:
            for _ in range(3_000):
                end(writer.begin(Kind.SPAN, 0, 1))
        except BaseException as error:  # noqa: BLE001 - any exception here would have reached the training
            raised.append(error)

    try:
        for number in range(50):
            (tmp_path / str(number)).mkdir()
            _, writer = make_writer(tmp_path / str(number))
            thread = threading.Thread(target=write, args=(writer,))
            thread.start()
            writer.close()
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert raised == []
