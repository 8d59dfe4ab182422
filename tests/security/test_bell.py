"""Who may ask a rank for its stacks: whoever may write to a file of its run."""

import errno
import os
import tempfile
import threading
from pathlib import Path

import pytest

from tests.live.processes import until
from traincope.store.job.bell import Bell, ring, take


def test_a_ring_wakes_the_rank_and_no_descriptor_is_open_meanwhile(tmp_path: Path) -> None:
    path, heard = tmp_path / "bell", []
    before = os.listdir("/proc/self/fd")
    bell = Bell(path)

    def listen() -> None:
        for _ in range(3):
            bell.wait()
            heard.append(take(path))

    thread = threading.Thread(target=listen)
    thread.start()
    assert os.listdir("/proc/self/fd") == before
    for number in range(2):
        ring(path)
        until(lambda number=number: len(heard) > number, "the ring")
    while thread.is_alive():
        bell.wake()
        thread.join(0.01)
    assert heard == [True, True, False]


def test_a_cut_bell_ends_the_wait_without_a_crash(tmp_path: Path) -> None:
    bell = Bell(tmp_path / "bell")
    os.truncate(tmp_path / "bell", 0)
    with pytest.raises(OSError, match="futex"):
        bell.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_only_the_user_and_root_may_ask_a_rank() -> None:
    """The run's directory lets others in here, so that the file's own mode decides."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        path = Path(directory) / "bell"
        Bell(path)
        ring(path)
        assert take(path)
        child = os.fork()
        if child == 0:
            os._exit(_error_of_another_user(path))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EACCES
        assert not take(path)


def _error_of_another_user(path: Path) -> int:
    os.setgroups([])
    os.setgid(12345)
    os.setuid(12345)
    try:
        ring(path)
    except OSError as error:
        return error.errno or 0
    return 0
