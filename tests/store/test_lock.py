"""The lock of a node's agent: one process holds it, and it is free when that process has ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from traincope.store import lock
from traincope.store.lock import job_name, lock_path, node_directory, remove_lock, take_lock

HOLD = """
import sys
from pathlib import Path
from traincope.store.lock import take_lock
print(take_lock(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_only_one_process_holds_the_lock(tmp_path: Path) -> None:
    held = take_lock(tmp_path / "lock")
    assert held is not None
    assert take_lock(tmp_path / "lock") is None
    os.close(held)
    again = take_lock(tmp_path / "lock")
    assert again is not None
    os.close(again)


def test_the_lock_is_free_after_its_holder_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip().isdigit()
        assert take_lock(tmp_path / "lock") is None
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    held = take_lock(tmp_path / "lock")
    assert held is not None
    os.close(held)


def test_an_inheriting_child_keeps_the_lock(tmp_path: Path) -> None:
    held = take_lock(tmp_path / "lock")
    assert held is not None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(held,)) as child:
        os.close(held)
        assert take_lock(tmp_path / "lock") is None
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
    free = take_lock(tmp_path / "lock")
    assert free is not None
    os.close(free)


def test_a_removed_lock_file_is_not_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = take_lock(path)
    assert first is not None
    remove_lock(path, first)
    assert not path.exists()
    second = take_lock(path)
    assert second is not None
    remove_lock(path, first)  # no longer the lock file
    assert path.exists()
    os.close(first)
    os.close(second)


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic"):
        take_lock(tmp_path / "lock")
    assert not (tmp_path / "victim").exists()


def test_root_of_two_containers_has_two_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """user_namespaces(7): first id inside, first id outside, number of ids."""
    names = []
    monkeypatch.setattr(lock, "UID_MAP", tmp_path / "uid_map")
    for content in ("0 100000 65536\n", "0 200000 65536\n", "damaged"):
        (tmp_path / "uid_map").write_text(content)
        names.append(node_directory().name)
    uid = os.getuid()
    assert names == [f"traincope-{100000 + uid}", f"traincope-{200000 + uid}", f"traincope-{uid}"]


def test_the_name_contains_user_job_and_attempt(tmp_path: Path) -> None:
    name = job_name(tmp_path / "a", attempt=2)
    assert name.startswith(f"traincope-{os.getuid()}-")
    assert name.endswith("-002")
    assert name != job_name(tmp_path / "b", attempt=2)
    (tmp_path / "link").symlink_to(tmp_path)
    assert name == job_name(tmp_path / "link" / "a", attempt=2)
    assert lock_path(name).name == f"{name}.lock"
