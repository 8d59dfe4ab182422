"""Faults of the files under the recorder: the training is not affected, and losses are counted and reported."""

import faulthandler
import mmap
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import traincope
from tests.faults.victims.trainings import FAULT_STEP, SMALL_SEGMENT, STEPS, Outcome, train, train_observed
from tests.faults.victims.victims import TIMEOUT_SECONDS, Victims
from traincope.events import RECORD_BYTES, Kind
from traincope.record.instrumentation import guard as guarding
from traincope.record.process.signals import STATUS
from traincope.record.segments import writer
from traincope.record.segments.writer import SEGMENT_BYTES
from traincope.store import RankRecords, read_run
from traincope.store.job.process import caught_signals
from traincope.store.segments.records import count_dropped
from traincope.store.segments.segments import HEADER_BYTES

NOBODY = 65534


def only_rank(path: Path) -> RankRecords:
    (rank,) = read_run(path).ranks
    return rank


def spans(rank: RankRecords) -> list[str]:
    """Return the names of the spans around the steps that are left."""
    records = rank.thread("main")
    names = [rank.name(int(number)) for number in records["name"][records["kind"] == Kind.SPAN]]
    return [name for name in names if name == "train one step"]


def before_the_fault_step(fault: Callable[[], object]) -> Callable[[int], None]:
    return lambda step: fault() if step == FAULT_STEP else None  # type: ignore[return-value]


def test_without_a_fault_every_record_is_kept(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    """The baseline of all other tests: 8 steps, each of several segments."""
    ended = victims.train(train_observed, tmp_path / "run")
    assert (ended.code, ended.result, ended.err) == (0, bare, "")
    rank = only_rank(tmp_path / "run")
    assert len(spans(rank)) == STEPS
    assert (rank.dropped, rank.problems, rank.info.ending) == (0, (), "clean")
    assert len(rank.segments) > STEPS


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem with room for two segments and little more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={3 * SEGMENT_BYTES}", "tmpfs", disk], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a full and a read-only disk need the right to mount one: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: str) -> None:
    """Fill the disk to the last byte."""
    with open(f"{disk}/file of another user", "ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


def train_while_the_disk_fills(disk: str) -> Outcome:
    return train_observed(f"{disk}/run", before_the_fault_step(lambda: fill(disk)))


def test_a_disk_that_fills_drops_records_and_counts_them(victims: Victims, bare: Outcome, small_disk: Path) -> None:
    ended = victims.train(train_while_the_disk_fills, small_disk)
    assert (ended.code, ended.result) == (0, bare)
    rank = only_rank(small_disk / "run")
    assert FAULT_STEP <= len(spans(rank)) < STEPS
    assert rank.info.recorder["dropped"] > 100
    assert rank.info.ending == "clean"


def train_while_the_disk_is_full_for_a_step(disk: str) -> Outcome:
    def at(step: int) -> None:
        if step == FAULT_STEP:
            fill(disk)
        elif step == FAULT_STEP + 1:
            os.unlink(f"{disk}/file of another user")

    return train_observed(f"{disk}/run", at)


def test_recording_continues_after_space_is_freed_and_reports_the_drops(
    victims: Victims, bare: Outcome, small_disk: Path
) -> None:
    assert victims.train(train_while_the_disk_is_full_for_a_step, small_disk).result == bare
    rank = only_rank(small_disk / "run")
    assert STEPS - 2 <= len(spans(rank)) <= STEPS
    assert count_dropped(rank.segments) == rank.dropped > 10
    assert rank.problems == ()


def train_on_a_full_disk(disk: str) -> Outcome:
    fill(disk)
    return train_observed(f"{disk}/run")


def test_a_disk_that_is_full_from_the_start_is_reported_once(victims: Victims, bare: Outcome, small_disk: Path) -> None:
    ended = victims.train(train_on_a_full_disk, small_disk)
    assert (ended.code, ended.result) == (0, bare)
    assert ended.err.count("cannot be written: No space left on device. The training goes on.") == 1


def train_while_the_disk_becomes_read_only(disk: str) -> Outcome:
    def fault() -> None:
        """A file open for writing keeps a filesystem from becoming read-only, but not a bind mount of it."""
        subprocess.run(["mount", "--bind", disk, disk], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)

    return train_observed(f"{disk}/run", before_the_fault_step(fault))


def test_a_disk_that_becomes_read_only_drops_all_later_records(
    victims: Victims, bare: Outcome, small_disk: Path
) -> None:
    ended = victims.train(train_while_the_disk_becomes_read_only, small_disk)
    subprocess.run(["umount", "-l", small_disk], check=True)
    assert (ended.code, ended.result) == (0, bare)
    assert "Read-only file system" in ended.err
    rank = only_rank(small_disk / "run")
    assert FAULT_STEP <= len(spans(rank)) < STEPS


def train_as_nobody(out: str) -> Outcome:
    os.chmod(".", 0o777)
    Path(out).parent.chmod(0o555)
    os.setuid(NOBODY)
    return train_observed(out)


def test_a_directory_of_another_user_is_left_alone(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    ended = victims.train(train_as_nobody, tmp_path / "theirs" / "run")
    assert (ended.code, ended.result) == (0, bare)
    assert ended.err.count("cannot be written: Permission denied (") == 1
    assert list((tmp_path / "theirs").iterdir()) == []


def train_over_quota(out: str) -> Outcome:
    def fault() -> None:
        """Every byte beyond raises SIGXFSZ, which Python ignores."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))

    def at(step: int) -> None:
        if step == FAULT_STEP:
            fault()
        elif step == STEPS - 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    return train_observed(out, at)


def test_a_quota_drops_records_while_it_holds(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    ended = victims.train(train_over_quota, tmp_path / "run")
    assert (ended.code, ended.result) == (0, bare)
    rank = only_rank(tmp_path / "run")
    assert FAULT_STEP + 1 <= len(spans(rank)) < STEPS
    assert count_dropped(rank.segments) == rank.dropped > 100
    assert rank.problems == ()


def segments(out: str) -> list[Path]:
    """Segments of the main thread, oldest first. The collector may write a record on any other."""
    return sorted(Path(out).rglob("main-*.seg"))


def train_as_nobody_while_its_segments_are_cut(out: str) -> Outcome:
    """Every change of a file that its user may make, for example a mistake in a shell."""
    os.chmod(".", 0o777)
    Path(out).parent.chmod(0o777)
    os.setuid(NOBODY)
    refused = []

    def fault() -> None:
        written_to = segments(out)[-1]
        for cut in (
            lambda path: os.truncate(path, 0),
            lambda path: path.write_bytes(b""),
            lambda path: path.open("r+b"),
        ):
            try:
                cut(written_to)
            except PermissionError:
                refused.append(cut)

    outcome = train_observed(out, before_the_fault_step(fault))
    assert len(refused) == 3
    return outcome


def test_an_ordinary_user_cannot_truncate_a_segment_in_use(victims: Victims, bare: Outcome) -> None:
    with tempfile.TemporaryDirectory() as reached_by_all:
        run = Path(reached_by_all) / "run"
        ended = victims.train(train_as_nobody_while_its_segments_are_cut, run)
        assert (ended.code, ended.result, ended.err) == (0, bare, "")
        rank, modes = only_rank(run), {path.stat().st_mode & 0o222 for path in segments(str(run))}
    assert (len(spans(rank)), rank.dropped, rank.problems) == (STEPS, 0, ())
    assert modes == {0o200}, "rm does not ask for confirmation"


def write_spans(number: int = 3 * SMALL_SEGMENT) -> None:
    for _ in range(number):
        with traincope.span("short"):
            pass


def close_a_span_in_a_segment_that_is_sealed(out: str) -> list[Any]:
    """The step that is open when its segment is full is in that segment too."""
    os.chmod(".", 0o777)
    Path(out).parent.chmod(0o777)
    os.setuid(NOBODY)
    writer.CAPACITY = SMALL_SEGMENT
    outlasting, refused = traincope.span("longer than its segment, and the run"), 0
    with traincope.run(out, budget=None):
        outlasting.__enter__()
        for _ in range(2):
            write_spans()
            child = os.fork()  # drops its reference to the segment
            if not child:
                del outlasting
                os._exit(0)
            os.waitpid(child, 0)
            try:
                os.truncate(segments(out)[0], 0)
            except PermissionError:
                refused += 1
    held = [path.stat().st_mode & 0o222 for path in segments(out)]
    outlasting.__exit__(None, None, None)
    return [refused, held[0], {*held[1:]} == {0o200}, segments(out)[0].stat().st_mode & 0o222]


def test_an_ordinary_user_cannot_truncate_a_segment_with_an_open_record(victims: Victims) -> None:
    with tempfile.TemporaryDirectory() as reached_by_all:
        run = Path(reached_by_all) / "run"
        ended = victims.train(close_a_span_in_a_segment_that_is_sealed, run)
        assert (ended.code, ended.result) == (0, [2, 0, True, 0o200]), ended.err
        assert only_rank(run).problems == ()


def train_while_its_segments_are_deleted(out: str) -> Outcome:
    def fault() -> None:
        for path in segments(out):
            path.unlink()

    return train_observed(out, before_the_fault_step(fault))


def test_deleted_segments_lose_only_their_own_records(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    ended = victims.train(train_while_its_segments_are_deleted, tmp_path / "run")
    assert (ended.code, ended.result, ended.err) == (0, bare, "")
    rank = only_rank(tmp_path / "run")
    assert STEPS - FAULT_STEP - 1 <= len(spans(rank)) <= STEPS - FAULT_STEP
    assert count_dropped(rank.segments) == rank.dropped == 40
    (problem,) = rank.problems
    assert "main-00000.seg" in problem
    assert "is missing" in problem


def train_while_the_run_directory_is_removed(out: str) -> Outcome:
    return train_observed(out, before_the_fault_step(lambda: shutil.rmtree(out)))


def test_a_removed_run_directory_is_not_created_again(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    ended = victims.train(train_while_the_run_directory_is_removed, tmp_path / "run")
    assert (ended.code, ended.result) == (0, bare)
    assert "training goes on: [Errno 2] No such file or directory" in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "run").exists()


def train_where_the_run_directory_is_removed_before_the_first_step(out: str) -> list[Any]:
    """The rank's place is known only at that step, so its records would be moved once more."""
    writer.CAPACITY = SMALL_SEGMENT
    with traincope.run(out, budget=None):
        shutil.rmtree(out)
        outcome = train()
    return [outcome, guarding.counts["recorder.Recorder.settle"]]


def test_a_run_directory_removed_before_the_first_step_is_not_created_again(
    victims: Victims, bare: Outcome, tmp_path: Path
) -> None:
    ended = victims.train(train_where_the_run_directory_is_removed_before_the_first_step, tmp_path / "run")
    assert (ended.code, ended.result) == (0, [bare, 1])
    assert "recorder.Recorder.settle failed, training goes on: [Errno 2] No such file" in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "run").exists()


CUTS: dict[str, Callable[[Path], object]] = {
    "to nothing": lambda path: os.truncate(path, 0),
    "in its header": lambda path: os.truncate(path, 100),
    "after its first record": lambda path: os.truncate(path, HEADER_BYTES + RECORD_BYTES),
    "by writing another over it": lambda path: path.write_bytes(b"something else"),
}


def train_while_a_segment_is_cut(out: str, how: str) -> Outcome:
    return train_observed(out, before_the_fault_step(lambda: CUTS[how](segments(out)[-1])))


@pytest.mark.parametrize("how", CUTS)
def test_a_truncated_segment_loses_only_the_missing_part(
    victims: Victims, bare: Outcome, tmp_path: Path, how: str
) -> None:
    """Runs as root, whom no mode binds: a write to a mapped page beyond a file's end is SIGBUS."""
    ended = victims.train(train_while_a_segment_is_cut, tmp_path / "run", how)
    assert (ended.code, ended.result, ended.err) == (0, bare, "")
    rank = only_rank(tmp_path / "run")
    assert STEPS - 2 <= len(spans(rank)) <= STEPS
    assert 0 < count_dropped(rank.segments) == rank.dropped < SMALL_SEGMENT
    assert rank.info.signals == {}
    complaint = "header" if how != "after its first record" else ""
    assert [complaint in problem for problem in rank.problems] == ([True] if complaint else [])


def train_on_two_threads_while_segments_of_many_pages_are_cut(out: str) -> Outcome:
    """Slots in them are closed later, on any of their pages, by either thread."""
    opened: list[Any] = []

    def open_some() -> None:
        for number in range(600):
            span = traincope.span(f"a thread's {number % 10}")
            span.__enter__()
            opened.append(span)

    def at(step: int) -> None:
        writer.CAPACITY = 1_000
        if step in (2, FAULT_STEP):
            thread = Thread(target=open_some)
            thread.start()
            thread.join()
        if step == FAULT_STEP:
            for path in segments(out):
                os.truncate(path, 0)
        for span in opened if step > FAULT_STEP else ():
            span.__exit__(None, None, None)
        del opened[: len(opened) if step > FAULT_STEP else 0]

    return train_observed(out, at)


def test_segments_of_many_pages_may_be_truncated_under_two_threads(
    victims: Victims, bare: Outcome, tmp_path: Path
) -> None:
    ended = victims.train(train_on_two_threads_while_segments_of_many_pages_are_cut, tmp_path / "run")
    assert (ended.code, ended.result, ended.err) == (0, bare, "")
    rank = only_rank(tmp_path / "run")
    assert len(spans(rank)) == STEPS - FAULT_STEP - 1
    assert rank.dropped > 100


def close_a_span_after_the_run_in_a_segment_that_was_cut(out: str) -> list[bool]:
    """The signal is handled before the run, before the span is closed, or after."""

    def is_handled() -> bool:
        return bool(caught_signals(STATUS.read_text()) >> (signal.SIGBUS - 1) & 1)

    outlasting, handled = traincope.span("longer than the run"), [is_handled()]
    with traincope.run(out):
        outlasting.__enter__()
    handled.append(is_handled())
    os.truncate(segments(out)[0], 0)
    outlasting.__exit__(None, None, None)
    return [*handled, is_handled()]


def test_a_segment_with_an_open_record_may_be_truncated(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(close_a_span_after_the_run_in_a_segment_that_was_cut, tmp_path / "run")
    assert (ended.code, ended.result) == (0, [False, True, False])


def be_cut_after_a_signal_that_was_survived(out: str) -> int:
    came: list[int] = []
    signal.signal(signal.SIGBUS, lambda number, _: came.append(number))
    with traincope.run(out):
        write_spans(2)
        os.kill(os.getpid(), signal.SIGBUS)
        os.truncate(segments(out)[0], 0)
        write_spans(2)
    os.kill(os.getpid(), signal.SIGBUS)
    return len(came)


def be_cut_after_a_signal_that_is_ignored(out: str) -> int:
    signal.signal(signal.SIGBUS, signal.SIG_IGN)
    with traincope.run(out):
        write_spans(2)
        os.kill(os.getpid(), signal.SIGBUS)
        os.truncate(segments(out)[0], 0)
        write_spans(2)
    return 2


def be_cut_after_stacks_are_forgone(out: str) -> int:
    with traincope.run(out):
        write_spans(2)
        faulthandler.disable()
        os.truncate(segments(out)[0], 0)
        write_spans(2)
    return 2


@pytest.mark.parametrize(
    "run",
    [
        be_cut_after_a_signal_that_was_survived,
        be_cut_after_a_signal_that_is_ignored,
        be_cut_after_stacks_are_forgone,
    ],
)
def test_other_handlers_of_the_signal_do_not_remove_ours(
    victims: Victims, tmp_path: Path, run: Callable[[str], int]
) -> None:
    ended = victims.train(run, tmp_path / "run")
    assert (ended.code, ended.result) == (0, 2)
    assert only_rank(tmp_path / "run").dropped > 0


def write_while_a_segment_is_cut_and_grows_again(out: str) -> None:
    writer.CAPACITY = SMALL_SEGMENT
    with traincope.run(out, level=0):
        write_spans(20)
        path = segments(out)[0]
        size = path.stat().st_size
        os.truncate(path, HEADER_BYTES + 5 * RECORD_BYTES)
        os.truncate(path, size)
        write_spans(10)


def test_a_truncated_segment_that_grew_again_is_reported(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(write_while_a_segment_is_cut_and_grows_again, tmp_path / "run")
    assert (ended.code, ended.err) == (0, "")
    rank = only_rank(tmp_path / "run")
    lost = rank.info.recorder["events"] - sum(len(rank.thread(name)) for name in rank.threads)
    assert lost >= 16, "one clock and 20 spans were there, 5 are; a run of the garbage collector is one record more"
    (problem,) = rank.problems
    assert f"main-00000.seg is damaged: {lost} implausible records" in problem


def write_to_a_cut_file() -> None:
    """A file of the training's own that was truncated."""
    Path("mine").write_bytes(bytes(mmap.PAGESIZE))
    with open("mine", "r+b") as file:
        mapping = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    os.truncate("mine", 0)
    mapping[0] = 1


def fault_elsewhere(out: str) -> None:
    with traincope.run(out, signal_stacks=True):
        write_to_a_cut_file()


def be_sent_a_bus_error(out: str) -> None:
    with traincope.run(out, signal_stacks=True):
        os.kill(os.getpid(), signal.SIGBUS)
        time.sleep(TIMEOUT_SECONDS)


def fault_elsewhere_with_stacks_of_its_own(out: str) -> None:
    with traincope.run(out):
        faulthandler.enable()
        write_to_a_cut_file()


@pytest.mark.parametrize("die", [fault_elsewhere, be_sent_a_bus_error, fault_elsewhere_with_stacks_of_its_own])
def test_a_bus_error_in_other_memory_still_ends_the_training(
    victims: Victims, tmp_path: Path, die: Callable[[str], None]
) -> None:
    ended = victims.run(die, tmp_path / "run")
    assert ended.code == -signal.SIGBUS
    stacks = ended.err if "own" in die.__name__ else only_rank(tmp_path / "run").info.signals["fatal"]
    assert stacks.startswith("Fatal Python error: Bus error")
    assert f"in {die.__name__}" in stacks


def train_while_segments_that_are_full_are_cut(out: str) -> Outcome:
    def fault() -> None:
        for path in segments(out)[:-1]:
            os.truncate(path, 100)

    return train_observed(out, before_the_fault_step(fault))


def test_truncating_a_full_segment_loses_only_that_segment(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    ended = victims.train(train_while_segments_that_are_full_are_cut, tmp_path / "run")
    assert (ended.code, ended.result, ended.err) == (0, bare, "")
    rank = only_rank(tmp_path / "run")
    assert len(spans(rank)) >= STEPS - FAULT_STEP
    assert len(rank.problems) >= FAULT_STEP
    assert all("main-" in problem for problem in rank.problems)


def train_without_descriptors(out: str) -> Outcome:
    def at(step: int) -> None:
        if step == FAULT_STEP:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 4096))
        elif step == STEPS - 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))

    return train_observed(out, at)


def train_without_memory_to_map(out: str) -> Outcome:
    def at(step: int) -> None:
        """Existing mappings stay. torch has its memory and continues; a further segment is refused."""
        if step == FAULT_STEP:
            writer.CAPACITY = 64 * SEGMENT_BYTES // RECORD_BYTES
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 32 * SEGMENT_BYTES, resource.RLIM_INFINITY))
        elif step == STEPS - 1:
            writer.CAPACITY = SMALL_SEGMENT
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    return train_observed(out, at)


@pytest.mark.parametrize("train_without_segments", [train_without_descriptors, train_without_memory_to_map])
def test_without_descriptors_or_memory_records_are_dropped_and_counted(
    victims: Victims, bare: Outcome, tmp_path: Path, train_without_segments: Callable[[str], Outcome]
) -> None:
    ended = victims.train(train_without_segments, tmp_path / "run")
    assert (ended.code, ended.result) == (0, bare)
    rank = only_rank(tmp_path / "run")
    assert count_dropped(rank.segments) == rank.dropped > 100
    assert (rank.info.ending, rank.problems) == ("clean", ())


def test_the_training_process_writes_only_to_the_run_directory(victims: Victims, bare: Outcome) -> None:
    assert victims.train(train).result == bare
    assert not traincope.run().directory
