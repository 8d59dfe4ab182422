"""SIGKILL at random instants of a process that writes as fast as it can: every begun record survives.

The victim counts in shared memory what it is about to begin, and again once it has begun it. So for every instant the
test knows which records must exist and which may. `make test-kill` takes 200 instants.
"""

import mmap
import os
import random
import time
from itertools import count
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import traincope
from tests.faults.victims.trainings import join_a_group
from tests.faults.victims.victims import Victims
from traincope.errors import TraincopeError
from traincope.events import BLOCK_STEPS, Kind
from traincope.record.segments import writer
from traincope.store import RankRecords, read_run
from traincope.timeline import build_timeline

INSTANTS = int(os.environ.get("TRAINCOPE_KILLS", "20"))
MAX_SECONDS = 0.06
NAMES = 97
SMALL_SEGMENT = 64
WORDS = 6
"""Spans, events, collectives: announced, begun."""


def shared_words(path: str | Path) -> memoryview:
    """Numbers that two processes share. A store is atomic."""
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), WORDS * 8)).cast("q")


def write_until_killed(out: str, counters: str, small: bool) -> None:
    words = shared_words(counters)
    join_a_group()
    if small:
        writer.CAPACITY = SMALL_SEGMENT
    tensor = torch.ones(4)
    with traincope.run(out, budget=None) as run:
        for number in count(1):
            words[0] = number
            with traincope.span(f"span {number % NAMES}"):
                words[1] = words[2] = number
                traincope.event("event", number=number)
                words[3] = words[4] = number
                dist.all_reduce(tensor)
                words[5] = number
            if number % 16 == 0:
                run.step()


@pytest.mark.parametrize("instant", range(INSTANTS))
def test_every_record_begun_before_the_kill_survives(victims: Victims, tmp_path: Path, instant: int) -> None:
    rng = random.Random(instant)
    counters = tmp_path / "counters"
    counters.write_bytes(bytes(8 * WORDS))
    words = shared_words(counters)
    directory, _ = victims.start(write_until_killed, tmp_path / "run", counters, instant % 2 == 1)
    while instant % 4 and not words[0]:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, MAX_SECONDS))
    victims.kill()
    ended = victims.ended(directory)
    assert (ended.code, ended.err) == (-9, "")
    check(tmp_path / "run", [int(word) for word in words])


def check(path: Path, words: list[int]) -> None:
    """One of four kills may come before the first record. Then the run directory may be empty."""
    try:
        run = read_run(path)
    except TraincopeError:
        assert not words[1]
        return
    (rank,) = run.ranks
    assert (run.problems, rank.problems, rank.dropped, rank.info.ending) == ((), (), 0, None)
    numbers = range(1, words[0] + 1)
    assert_begins(spans(rank), [f"span {n % NAMES}" for n in numbers], at_least=words[1])
    assert_begins(events(rank), list(numbers), at_least=words[3])
    assert_begins(sequences(rank), [count_in_window(n - 1) for n in numbers], at_least=words[5])
    build_timeline(run)


def count_in_window(number: int) -> int:
    """Count of a collective, of which there are 16 a step. Those before the first step are in the first window."""
    window = BLOCK_STEPS * 16
    return number if number < window + 16 else (number - 16) % window


def assert_begins(read_back: list[object], announced: list[object], *, at_least: int) -> None:
    """In order: all begun records, and at most the announced ones."""
    assert at_least <= len(read_back) <= len(announced)
    assert read_back == announced[: len(read_back)]


def of_kind(rank: RankRecords, kind: Kind) -> list[object]:
    records = rank.thread("main")
    return list(records[records["kind"] == kind])


def spans(rank: RankRecords) -> list[object]:
    return [rank.name(int(record["name"])) for record in of_kind(rank, Kind.SPAN)]  # type: ignore[index]


def events(rank: RankRecords) -> list[object]:
    return [rank.details[int(record["group"])]["number"] for record in of_kind(rank, Kind.EVENT)]  # type: ignore[index]


def sequences(rank: RankRecords) -> list[object]:
    return [int(record["sequence"]) for record in of_kind(rank, Kind.COLLECTIVE)]  # type: ignore[index]
