"""The training's descriptors are its own: the recorder keeps none open, and touches none of the training's files."""

import os
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import traincope
from tests.faults.victims.trainings import SMALL_SEGMENT
from tests.faults.victims.victims import Victims
from traincope.events import Kind
from traincope.record.segments import writer
from traincope.record.session import agent
from traincope.store import RankRecords, read_run

STEPS = 6
CLOSED_AT = 3
"""The step before which the training closes descriptors."""
NUM_FILES = 40
CONTENT = b"of the training" * 100
REVISION = "0123456789abcdef0123456789abcdef01234567"
HIGHEST = 400
"""Numbers below it are the training's to close. Above are those of the process that starts the victims."""


def descriptors() -> dict[int, str]:
    """Return what this process has open, without the directory that is read here."""
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
    return found


def new_ones(before: dict[int, str]) -> list[str]:
    return [target for number, target in descriptors().items() if before.get(number) != target]


def train(at: Callable[[int], None] = lambda _: None) -> None:
    """Train some steps, with every call that makes the recorder write into a file."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        at(step)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        for number in range(20):
            with traincope.span(f"span {number} of step {step}"):
                traincope.event("seen", number=number)
        traincope.log(step=step)
        traincope.step()


def list_in_a_fork(before: dict[int, str], out: str) -> None:
    """Write what a forked child has open."""
    if not (child := os.fork()):
        Path(out).write_text("\n".join(new_ones(before)))
        os._exit(0)
    os.waitpid(child, 0)


class Opened(torch.utils.data.Dataset[Any]):
    """What a data loader's worker has open in a run's directory, as its only sample."""

    def __init__(self, run: str) -> None:
        self._run = run

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> list[str]:
        return [target for target in new_ones({}) if self._run in target]


def list_what_is_open(out: str, level: int) -> list[list[str]]:
    """In the middle of a run, in a forked child, in a worker, and after the run."""
    agent.PROGRAM = "pass"
    os.environ["TRAINCOPE_AGENT"] = "on"
    writer.CAPACITY = SMALL_SEGMENT
    before, seen = descriptors(), []

    def at(step: int) -> None:
        if step == STEPS - 1:
            seen.append(new_ones(before))
            list_in_a_fork(before, f"{out}.txt")
            seen.append(Path(f"{out}.txt").read_text().split())
            loader: DataLoader[Any] = DataLoader(Opened(out), batch_size=None, num_workers=1)
            seen.extend(loader)

    with traincope.run(out, level=level, corruption_check_steps=2, budget=None):
        train(at)
    return [*seen, new_ones(before)]


@pytest.mark.parametrize("level", range(4))
def test_no_descriptor_stays_open(victims: Victims, tmp_path: Path, level: int) -> None:
    ended = victims.run(list_what_is_open, tmp_path / "run", level)
    assert (ended.code, ended.result) == (0, [[], [], [], []]), ended.err
    assert len(only_rank(tmp_path / "run").segments) > STEPS


def close_all() -> None:
    os.closerange(3, HIGHEST)


def close_even_numbers() -> None:
    for number in descriptors():
        if number % 2 == 0 and 3 <= number < HIGHEST:
            with suppress(OSError):  # of the directory that was read
                os.close(number)


def replace_all_by_files() -> None:
    with open("a file on every number", "wb") as file:
        file.write(CONTENT)
        replace_all(file.fileno())


def replace_all_by_sockets() -> None:
    mine, other = socket.socketpair()
    with mine, other:
        replace_all(mine.fileno(), other.fileno())


def replace_all(source: int, *kept: int) -> None:
    for number in range(3, HIGHEST):
        if number not in (source, *kept):
            os.dup2(source, number)


def run_and_open_files(out: str, close: str, when: str) -> list[str]:
    """Close descriptors, open files, and return those that were changed until the end of the run."""
    writer.CAPACITY = SMALL_SEGMENT
    files: dict[str, int] = {}

    def open_files() -> None:
        globals()[close]()
        for number in range(NUM_FILES):
            name = f"file {number}"
            files[name] = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
            os.write(files[name], CONTENT)

    if when == "before":
        open_files()
    with traincope.run(out, level=2, corruption_check_steps=2, budget=None):
        train(lambda step: open_files() if step == CLOSED_AT and when == "in the middle" else None)
        if when == "at the end":
            open_files()
    return [name for name, descriptor in files.items() if not is_whole(name, descriptor)]


def is_whole(name: str, descriptor: int) -> bool:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    same = os.path.samestat(status, os.stat(name))
    return same and status.st_mode & 0o777 == 0o644 and Path(name).read_bytes() == CONTENT


def only_rank(run: Path) -> RankRecords:
    (rank,) = read_run(run).ranks
    return rank


def num_spans(rank: RankRecords) -> int:
    records = rank.thread("main")
    names = [rank.name(int(number)) for number in records["name"][records["kind"] == Kind.SPAN]]
    return sum(name.startswith("span ") for name in names)


CLOSING = (close_all, close_even_numbers, replace_all_by_files, replace_all_by_sockets)


@pytest.mark.parametrize(
    ("close", "when"),
    [
        *((close.__name__, "in the middle") for close in CLOSING),
        (close_all.__name__, "before"),
        (close_all.__name__, "at the end"),
    ],
)
def test_files_that_get_the_numbers_of_closed_ones_stay_whole(
    victims: Victims, tmp_path: Path, close: str, when: str
) -> None:
    ended = victims.train(run_and_open_files, tmp_path / "run", close, when)
    assert (ended.code, ended.result, ended.err) == (0, [], "")
    rank = only_rank(tmp_path / "run")
    assert (rank.info.ending, rank.dropped, rank.problems) == ("clean", 0, ())
    assert num_spans(rank) == STEPS * 20
    assert len(rank.details) == STEPS * 20
    assert rank.state_checks is not None
    assert max(check.step for check in rank.state_checks.read()) > CLOSED_AT


def train_without_a_free_descriptor(out: str) -> bool:
    """Return whether the limit is the training's at the end. Every opening fails for a while, as if it leaked files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def at(step: int) -> None:
        if step == CLOSED_AT:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        elif step == STEPS - 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    writer.CAPACITY, writer.RETRY_NS = SMALL_SEGMENT, 0
    with traincope.run(out, budget=None):
        train(at)
    return resource.getrlimit(resource.RLIMIT_NOFILE) == limits


def test_without_a_free_descriptor_one_line_is_logged(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(train_without_a_free_descriptor, tmp_path / "run")
    assert (ended.code, ended.result) == (0, True)
    assert ended.err.count("\n") == ended.err.count("no file descriptor is free") == 1, ended.err
    rank = only_rank(tmp_path / "run")
    assert rank.info.ending == "clean"
    assert rank.dropped > 0
    assert rank.info.probes["descriptors"].startswith("failed ")
    assert not any("failed" in state for name, state in rank.info.probes.items() if name != "descriptors")


def train_where_the_working_directory_is_removed(out: str) -> None:
    os.mkdir("elsewhere")
    os.mkdir(".git")
    Path(".git/HEAD").write_text(REVISION)
    sys.argv[0] = "train.py"
    with traincope.run(out, level=2, corruption_check_steps=2, budget=None):
        train(lambda step: move() if step == CLOSED_AT else None)


def move() -> None:
    os.chdir("elsewhere")
    os.rmdir(os.getcwd())


def test_a_removed_working_directory_loses_no_record_and_no_revision(victims: Victims) -> None:
    directory, _ = victims.start(train_where_the_working_directory_is_removed, "run", briefly=True)
    ended = victims.ended(directory)
    assert (ended.code, ended.err) == (0, "")
    assert read_run(directory / "run").info.git_revision == REVISION
    rank = only_rank(directory / "run")
    assert (rank.info.ending, rank.dropped, num_spans(rank), len(rank.details)) == ("clean", 0, STEPS * 20, STEPS * 20)
