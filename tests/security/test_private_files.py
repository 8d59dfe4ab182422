"""Modes of new files, and directories that others may write to."""

import os
import signal
import stat
from pathlib import Path

import pytest

from traincope.errors import UnreadableError
from traincope.private_files import (
    check_owner,
    directory_mode,
    file_mode,
    held,
    make_directory,
    open_regular,
    private,
    read_regular,
)
from traincope.store import lock
from traincope.store.job.manifests import read_rank_info
from traincope.store.layout import RANK_FILE
from traincope.store.lock import lock_path, node_directory, take_lock


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(autouse=True)
def open_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    with open(tmp_path / "a" / "file", "xb", opener=private):
        assert mode(tmp_path / "a" / "file") == 0o600
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700
    make_directory(tmp_path / "a" / "b", exist_ok=True)
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "a" / "b")
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "a" / "file", exist_ok=True)


def test_a_directory_that_cannot_be_created_below_an_existing_one_is_an_error() -> None:
    """/proc has no mkdir: it answers ENOENT for any new name, although the parent exists."""
    for path in (Path("/proc/traincope"), Path("/proc/traincope/run/attempt-000")):
        with pytest.raises(FileNotFoundError):
            make_directory(path)


@pytest.mark.parametrize(("text", "expected"), [("027", 0o750), ("22", 0o755), ("0", 0o777), ("77", 0o700)])
def test_a_umask_lets_a_group_in(text: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCOPE_UMASK", text)
    assert (directory_mode(), file_mode()) == (expected, expected & 0o666)


@pytest.mark.parametrize("text", ["177", "-1", "rw", "0o27x", "8"])
def test_an_impossible_umask_closes_the_files_and_is_reported(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRAINCOPE_UMASK", text)
    assert (directory_mode(), file_mode()) == (0o700, 0o600)
    assert f"TRAINCOPE_UMASK must be two octal digits for group and others, e.g. 027, not {text!r}" in caplog.text


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe, reader = tmp_path / "pipe", None
    os.mkfifo(pipe)
    signal.alarm(60)  # an opening that waits ends this process
    try:
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(pipe)
        with pytest.raises(OSError, match="No such device"):
            open_regular(pipe, os.O_WRONLY)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(pipe, os.O_WRONLY)
        (tmp_path / RANK_FILE).symlink_to(pipe)
        with pytest.raises(UnreadableError, match="not a regular file"):
            read_rank_info(tmp_path)
    finally:
        signal.alarm(0)
        if reader is not None:
            os.close(reader)


def test_a_descriptor_that_another_thread_closed_is_not_closed_again(tmp_path: Path) -> None:
    (tmp_path / "ours").touch()
    (tmp_path / "the training's").touch()
    with held(os.open(tmp_path / "ours", os.O_RDONLY)) as descriptor:
        os.close(descriptor)
        theirs = os.open(tmp_path / "the training's", os.O_RDONLY)
        assert theirs == descriptor
    os.close(theirs)  # raises if it is closed
    with held(os.open(tmp_path / "ours", os.O_RDONLY)) as descriptor:
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    for bits in (0o777, 0o1777, 0o775, 0o757):
        shared.mkdir()
        shared.chmod(bits)
        with pytest.raises(PermissionError, match=r"can be written by others \(mode 0?1?7[57]"):
            check_owner(shared)
        shared.rmdir()
    shared.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="is not a directory"):
        check_owner(shared)
    with pytest.raises(FileNotFoundError):
        check_owner(tmp_path / "missing")


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path
    if os.geteuid() == 0:
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        os.chown(foreign, 12345, -1)
    else:
        foreign = Path("/usr")
    with pytest.raises(PermissionError, match=rf"belongs to user {foreign.stat().st_uid}, not to {os.geteuid()}"):
        check_owner(foreign)


def test_no_lock_is_taken_in_a_directory_that_someone_else_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user may create a directory of that name in /dev/shm before this one does."""
    monkeypatch.setattr(lock, "SHARED_MEMORY", tmp_path)
    node_directory().mkdir(mode=0o777)
    with pytest.raises(PermissionError, match="so its files cannot be trusted"):
        take_lock(lock_path("traincope-0-abc-000"))
    assert list(node_directory().iterdir()) == []
    node_directory().rmdir()
    os.umask(0o077)
    held = take_lock(lock_path("traincope-0-abc-000"))
    assert held is not None
    assert mode(node_directory()) == 0o755
    assert [mode(path) for path in node_directory().iterdir()] == [0o600]
    os.close(held)
