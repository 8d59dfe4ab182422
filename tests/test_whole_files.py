"""Atomic files, and user paths that are never replaced."""

import os
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from traincope.whole_files import aside_path, is_stream, output, write_whole, written_aside

CONTENT = b"all of it\n"


def write(path: Path) -> None:
    with output(path) as file:
        file.write(CONTENT)


def test_a_failing_block_leaves_the_old_file_only(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"before")
    with suppress(ZeroDivisionError), output(target) as file:
        file.write(bytes(100_000))
        raise ZeroDivisionError
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"before"}


def test_an_incomplete_directory_is_removed(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), written_aside(tmp_path / "made") as new_path:
        new_path.mkdir()
        (new_path / "part").touch()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_new_only_refuses_an_existing_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", b"first", only_new=True)
    write_whole(tmp_path / "file", b"second", only_new=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"first"}


def test_reserved_space_is_used_and_released(tmp_path: Path) -> None:
    (tmp_path / "room").write_bytes(bytes(1000))
    inode = (tmp_path / "room").stat().st_ino
    write_whole(tmp_path / "file", CONTENT, spare=tmp_path / "room")
    assert (tmp_path / "file").stat().st_ino == inode
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": CONTENT}


def test_a_link_at_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"untouched")
    aside_path(tmp_path / "file").symlink_to("victim")
    write_whole(tmp_path / "file", CONTENT)
    assert (tmp_path / "victim").read_bytes() == b"untouched"
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("exists", [True, False])
def test_writing_to_a_symbolic_link_writes_its_target(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    if exists:
        target.write_bytes(b"before")
    link.symlink_to("elsewhere/target")
    write(link)
    assert os.readlink(link) == "elsewhere/target"
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_circular_links_stay(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_symlink()) == ["a", "b"]


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join()
    assert received == [CONTENT]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        null.write_bytes(b"")
    except OSError:
        null = tmp_path / "link"
        null.symlink_to("/dev/null")
    write(null)
    assert is_stream(null)
    assert stat.S_ISCHR(null.stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_standard_output_is_written_at_its_position(tmp_path: Path) -> None:
    """Standard output may be redirected to a file: earlier output stays before it, later output follows."""
    code = (
        "import sys, pathlib; from traincope.whole_files import output\n"
        "print('before', flush=True)\n"
        "with output(pathlib.Path('/dev/stdout')) as file: file.write(b'all of it\\n')\n"
        "print('after')"
    )
    with (tmp_path / "file").open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    piped = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout
    assert (tmp_path / "file").read_bytes() == piped == b"before\nall of it\nafter\n"


def test_processes_of_two_containers_that_have_the_same_id_write_aside_under_two_names() -> None:
    """They share a folder, and each of them is process 1 of its own."""
    code = (
        "import os; os.getpid = lambda: 1; import traincope.whole_files as w; print(w.aside_path(w.Path('run.json')))"
    )
    names = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout for _ in range(2)]
    assert names[0] != names[1]
