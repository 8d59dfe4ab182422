"""Looks at a rank's process: what the agent wrote, what signals left, and what a reader sees now."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.events import Kind
from traincope.store.job.looks import Look, all_looks, append_look, look_at, read_looks
from traincope.store.job.process import Process
from traincope.store.layout import LOOKS_FILE, RANK_FILE, STACKS_FILE, signal_file
from traincope.store.segments.segments import RECORD_DTYPE

S = 1_000_000_000
WALL_OFFSET_NS = 1_700_000_000 * S
LOOK = Look(at_ns=7 * S, state="S", wait_channel="futex_do_wait", stack="Thread ...\n", by_agent=True)


def records(*, last_ns: int = 10 * S) -> NDArray[np.void]:
    """A pair of clocks, and the last record of the training thread."""
    made = np.zeros(2, dtype=RECORD_DTYPE)
    made["kind"], made["start_ns"], made["end_ns"] = [Kind.CLOCK, Kind.SPAN], [S, last_ns], [S, last_ns]
    made["value"][0] = S + WALL_OFFSET_NS
    return made


def rank_directory(tmp_path: Path, *, manifest_at_ns: int = 2 * S) -> Path:
    (tmp_path / RANK_FILE).write_text("{}")
    written(tmp_path / RANK_FILE, at_ns=manifest_at_ns)
    return tmp_path


def written(path: Path, *, at_ns: int) -> None:
    """Give a file the time that it would have at this instant of the records' clock."""
    os.utime(path, ns=(at_ns + WALL_OFFSET_NS, at_ns + WALL_OFFSET_NS))


def test_the_agents_looks_are_read_in_order(tmp_path: Path) -> None:
    looks = [LOOK, replace(LOOK, at_ns=9 * S, stack="")]
    for look in looks:
        append_look(tmp_path, look)
    assert read_looks(tmp_path) == tuple(looks)


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    append_look(tmp_path, LOOK)
    with (tmp_path / LOOKS_FILE).open("ab") as file:
        file.write(b'[]\n{"at_ns": "x"}\n\xff\n{"at_ns": 8, "state": "long", "wait_channel": "a b"}\n{"at_ns": 9')
    assert read_looks(tmp_path) == (LOOK, Look(at_ns=8, by_agent=True))


def test_stacks_of_a_signal_have_the_time_of_their_file(tmp_path: Path) -> None:
    directory = rank_directory(tmp_path)
    for name, at_ns in ((signal_file("SIGTERM"), 40 * S), (STACKS_FILE, 20 * S)):
        (directory / name).write_text(name)
        written(directory / name, at_ns=at_ns)
    (directory / signal_file("SIGUSR1")).touch()
    found = all_looks(directory, records(), process=None, running=None)
    assert found == (Look(at_ns=20 * S, stack=STACKS_FILE), Look(at_ns=40 * S, stack=signal_file("SIGTERM")))


def test_a_copy_has_other_times_that_tell_nothing(tmp_path: Path) -> None:
    directory = rank_directory(tmp_path, manifest_at_ns=500 * S)
    (directory / signal_file("SIGTERM")).write_text("stacks")
    assert all_looks(directory, records(), process=None, running=None) == ()


def test_a_running_process_is_seen_now_whatever_the_wall_clock_says(tmp_path: Path) -> None:
    (look,) = all_looks(rank_directory(tmp_path), records(), process=Process.this(), running=True)
    assert look.at_ns < WALL_OFFSET_NS
    assert (look.state, look.stack, look.by_agent) == ("R", "", False)


def test_an_ended_process_is_not_seen() -> None:
    this = Process.this()
    assert this is not None
    assert look_at(replace(this, started_ticks=1)) is None
    assert look_at(None) is None
