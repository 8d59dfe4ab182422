import itertools
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from traincope.record.segments import names as naming
from traincope.record.segments.names import OTHER, Details, Names
from traincope.store.lines import dense_names, read_numbered


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_name_is_written_once_before_its_number_is_used(tmp_path: Path) -> None:
    names = Names(tmp_path / "names.jsonl")
    assert [names.intern("forward"), names.intern("backward"), names.intern("forward")] == [1, 2, 1]
    assert lines(tmp_path / "names.jsonl") == [[0, OTHER], [1, "forward"], [2, "backward"]]


def test_names_beyond_the_limit_share_number_zero_and_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(naming, "MAX_NAMES_BYTES", 3 * naming.ENTRY_BYTES)
    names = Names(tmp_path / "names.jsonl")
    assert [names.intern(f"name {i}") for i in range(5)] == [1, 2, 0, 0, 0]
    assert names.refused == 3
    assert len(lines(tmp_path / "names.jsonl")) == 3


@pytest.mark.slow
def test_a_million_names_cost_a_bounded_file(tmp_path: Path) -> None:
    names = Names(tmp_path / "names.jsonl")
    for number in range(1_000_000):
        names.intern(f"request {number}")
    kept = len(names.numbers)
    assert names.refused == 1_000_000 - kept + 1
    assert (tmp_path / "names.jsonl").stat().st_size < naming.MAX_NAMES_BYTES
    assert kept * naming.ENTRY_BYTES < naming.MAX_NAMES_BYTES + naming.ENTRY_BYTES


def test_hostile_names_stay_one_line_and_short(tmp_path: Path) -> None:
    names = Names(tmp_path / "names.jsonl")
    hostile = "a\nb\u2028</script>\x1b[31m" + "x" * 10_000_000
    assert names.intern(hostile) == 1
    assert names.intern(hostile) == 1
    assert len((tmp_path / "names.jsonl").read_bytes()) < 2_000
    assert len((tmp_path / "names.jsonl").read_bytes().split(b"\n")) == 3


def test_a_signal_handler_may_intern_in_the_middle_of_an_intern(tmp_path: Path) -> None:
    """Hundreds of signals arrive between the lines of `intern`. With a lock, one of them would wait for itself."""
    names = Names(tmp_path / "names.jsonl")
    calls, in_handler = itertools.count(), dict[int, int]()

    def handler(_number: int, _frame: object) -> None:
        """The next signal may interrupt this one too."""
        call = next(calls)
        in_handler[names.intern(f"signal {call}")] = call

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        in_loop = {names.intern(f"loop {number}"): number for number in range(20_000)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    written = dense_names(read_numbered(tmp_path / "names.jsonl", version=2))
    assert len(in_handler) > 10
    assert len(in_handler) == next(calls)
    assert all(written[number] == f"signal {call}" for number, call in in_handler.items())
    assert all(written[number] == f"loop {i}" for number, i in in_loop.items())


def test_threads_that_meet_at_new_names_agree_with_the_file(tmp_path: Path) -> None:
    names = Names(tmp_path / "names.jsonl")
    given: list[tuple[int, str]] = []

    def work() -> None:
        given.extend((names.intern(f"name {i}"), f"name {i}") for i in range(2_000))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = dense_names(read_numbered(tmp_path / "names.jsonl", version=2))
    assert all(written[number] == name for number, name in given)


def test_refused_lines_are_written_once_the_disk_has_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partly written line is written again on a line of its own."""
    names = Names(tmp_path / "names.jsonl")
    really_write = os.write

    def write_three_bytes_then_nothing(descriptor: int, line: bytes) -> int:
        monkeypatch.setattr(os, "write", refuse)
        return really_write(descriptor, line[:3])

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write_three_bytes_then_nothing)
    assert [names.intern(name) for name in ("cut", "refused", "refused too")] == [1, 2, 3]
    monkeypatch.setattr(os, "write", really_write)
    names.file.retry()
    assert names.intern("after") == 4
    written = dense_names(read_numbered(tmp_path / "names.jsonl", version=2))
    assert written == (OTHER, "cut", "refused", "refused too", "after")
    names.file.close()
    assert names.file.lost == 0


def test_details_are_bounded_and_refused_ones_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "MAX_DETAILS_BYTES", 40)
    details = Details(tmp_path / "details.jsonl")
    assert [details.add({"step": number}) for number in (100, 200, 300, 400)] == [1, 2, 3, 0]
    assert details.refused == 1
    assert lines(tmp_path / "details.jsonl") == [[1, {"step": 100}], [2, {"step": 200}], [3, {"step": 300}]]


def test_details_of_any_shape_become_json(tmp_path: Path) -> None:
    details = Details(tmp_path / "details.jsonl")
    details.add({"mixed": {1: "a", "b": 2, (3, 4): 5}, "object": threading.main_thread})
    details.add({"huge": "x" * 1_000_000})
    (_, mixed), (_, huge) = lines(tmp_path / "details.jsonl")  # type: ignore[misc]
    assert mixed["mixed"] == {"1": "a", "b": 2}
    assert mixed["object"].startswith("<function main_thread")
    assert len(huge["cut_off"]) < naming.MAX_DETAIL_CHARACTERS
