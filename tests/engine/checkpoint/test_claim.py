"""The claim on a folder of checkpoints: a later attempt gets it, and an earlier one changes nothing after that."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from traincope.engine.checkpoint.manifest import Manifest, Sum, check_file, read_manifest
from traincope.engine.checkpoint.places import directory as folder
from traincope.engine.checkpoint.places.claim import CLAIM_FILE, Claim, Claimant, same_launch, take
from traincope.errors import CheckpointError
from traincope.store.job.process import Process

HOLDER = """
import sys
from pathlib import Path
from traincope.engine.checkpoint.places.claim import take
from traincope.store.job.process import Process
take(Path(sys.argv[1]), after=0, agents=[Process.of(int(sys.argv[2]))])
print(flush=True)
sys.stdin.read()
"""
CLAIMANTS, ROUNDS = 4, 6
CHANGES = ("rename", "rmdir", "unlink", "mkdir", "fsync")
"""Calls of the system by which a commit changes the folder, or waits for the disk."""


def write(claim: Claim, *, step: int, by: str) -> None:
    """Write and commit a checkpoint. Only the newest one is kept."""
    new = folder.new_path(claim.folder, step=step)
    folder.prepare(new)
    (new / "shard").write_text(by)
    files = {"shard": Sum.of(new / "shard")}
    folder.commit(new, Manifest(step=step, identity={"by": by}, layout={}, files=files), keep=1)


def whole(directory: Path) -> dict[int, object]:
    """Step -> writer of each complete checkpoint, whose files have their sums."""
    writers = {}
    for checkpoint in folder.complete_checkpoints(directory):
        manifest = read_manifest(checkpoint)
        for name, saved in manifest.files.items():
            check_file(checkpoint, name, saved, whole=True)
        writers[manifest.step] = manifest.identity["by"]
    return writers


def agent() -> Process:
    process = Process.of(os.getppid())
    assert process is not None
    return process


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds claim 1, of the launch of this test's parent."""
    command = [sys.executable, "-c", HOLDER, tmp_path, str(os.getppid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_each_attempt_has_the_next_number_and_removes_the_claim_before(tmp_path: Path) -> None:
    first = take(tmp_path / "c", after=0, agents=())
    assert first.loss() is None
    second = take(tmp_path / "c", after=1, agents=())
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["claim-00000002"]
    assert second.loss() is None
    assert str(first.loss()) == (
        f"a later attempt (process {os.getpid()} on host {os.uname().nodename}) has taken over the checkpoints in "
        f"{tmp_path / 'c'}, so this attempt cannot change them any more and ends; nothing needs to be done if that one "
        "trains"
    )


@pytest.mark.parametrize("before", [1, 2])
def test_an_attempt_that_began_before_a_later_claim_gets_none(tmp_path: Path, before: int) -> None:
    """Its number is still free in the second case: the later attempt has removed the claims below its own."""
    for number in range(before):
        take(tmp_path, after=number, agents=())
    with pytest.raises(CheckpointError, match="a later attempt"):
        take(tmp_path, after=0, agents=())
    assert f"claim-{before:08d}" in {path.name for path in tmp_path.iterdir()}
    write(Claim(folder=tmp_path / f"claim-{before:08d}"), step=1, by="later")
    assert whole(tmp_path) == {1: "later"}


def test_of_attempts_that_claim_at_once_one_gets_it(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        children = [_forked(lambda at: take(tmp_path, after=at, agents=()), number) for _ in range(CLAIMANTS)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert sorted(codes) == [0, *[1] * (CLAIMANTS - 1)]
        assert [path.name for path in tmp_path.glob("claim-*")] == [f"claim-{number + 1:08d}"]


def _forked(claim: Callable[[int], object], number: int) -> int:
    """Claim in a child that then ends without its parent's cleanup: 0 if it has the folder, 1 if it was refused."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            claim(number)
            code = 0
        except CheckpointError:
            code = 1
        finally:
            os._exit(code)
    return child


def test_a_living_process_of_another_launch_keeps_the_folder(tmp_path: Path, holder: "subprocess.Popen[bytes]") -> None:
    other = replace(agent(), started_ticks=1)
    assert not same_launch(tmp_path, {other})
    with pytest.raises(CheckpointError, match=rf"another training \(process {holder.pid} on host .*\) writes check"):
        take(tmp_path, after=1, agents={other})
    holder.kill()
    holder.wait()
    assert take(tmp_path, after=1, agents={other}).folder.name == "claim-00000002"


def test_an_attempt_of_the_same_launch_takes_the_folder_from_a_living_process(
    tmp_path: Path, holder: "subprocess.Popen[bytes]"
) -> None:
    """One common torchrun agent is enough: another one has lost its host, and a spare has come."""
    agents = {agent(), replace(agent(), pid=1)}
    assert same_launch(tmp_path, agents)
    write(take(tmp_path, after=1, agents=agents), step=1, by="later")
    assert holder.poll() is None
    assert whole(tmp_path) == {1: "later"}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"agents": 1, "pid": 1, "host": 1}'])
def test_a_claim_that_cannot_be_read_is_of_no_launch(tmp_path: Path, content: str) -> None:
    claim = take(tmp_path, after=0, agents={agent()})
    (claim.folder / CLAIM_FILE).write_text(content)
    assert not same_launch(tmp_path, {agent()})


def test_an_earlier_attempt_changes_nothing_at_whatever_instant_it_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits step 3, which removes step 2. A later attempt comes before the n-th change of this, for every n.

    The later one finds step 2 or step 3, continues from it, and saves step 3 as well.
    """
    found: list[dict[int, object]] = []
    for instant in range(100):
        directory = tmp_path / str(instant)
        early = take(directory, after=0, agents=())
        write(early, step=2, by="early")
        with monkeypatch.context() as patch:
            calls = _before_call(
                patch,
                instant,
                lambda of=directory: found.append(_later(of)),  # type: ignore[misc]
            )
            with suppress(OSError):
                write(early, step=3, by="early")
        if calls() <= instant:
            break
        assert whole(directory) == {3: "later"}, instant
        assert early.loss() is not None
        with pytest.raises(FileNotFoundError):
            write(early, step=4, by="early")
        with pytest.raises(FileNotFoundError):
            folder.set_aside(directory / "step-00000003", early.folder)
        assert whole(directory) == {3: "later"}
        assert {path.name for path in directory.iterdir()} == {"claim-00000002", "step-00000003"}
    assert {tuple(sorted(each)) for each in found} == {(2,), (2, 3), (3,)}
    assert {writer for each in found for writer in each.values()} == {"early"}


def _later(directory: Path) -> dict[int, object]:
    """Take the folder over, and save step 3 again. Returns the checkpoints that were found."""
    claim = take(directory, after=1, agents=())
    found = whole(directory)
    write(claim, step=3, by="later")
    return found


def _before_call(patch: pytest.MonkeyPatch, number: int, do: Callable[[], object]) -> Callable[[], int]:
    """Do something before a call with this number that changes files. Returns how many there were."""
    calls = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number + 1:
                patch.undo()
                do()
            return real(*arguments, **settings)

        return call

    for name in CHANGES:
        patch.setattr(os, name, counted(getattr(os, name)))
    return lambda: calls


def test_a_folder_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints"
    file.touch()
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be written \(Not a directory\); give another"):
        Claimant.read(file, agent=None)
