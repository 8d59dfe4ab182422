"""A command reads the index of an archive once: the copy of the run keeps it."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from traincope.store.places.archives import Archive, ArchiveWriter, Entry, Index, archive_name
from traincope.store.places.calls import Call
from traincope.store.places.fetched import Needs, fetch
from traincope.store.places.remote import RemoteFiles

HOSTS = 3


class Counting(RemoteFiles):
    """Counts which archives are read."""

    def __init__(self) -> None:
        super().__init__("memory://kept/run")
        self.read_names: list[str] = []

    def begin_part(self, name: str, *, start: int, end: int) -> Call[bytes]:
        self.read_names.append(name)
        return super().begin_part(name, start=start, end=end)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["fsspec.AbstractFileSystem"]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = fsspec.filesystem("memory")
    files.pipe_file("/kept/run/run.json", b"{}")
    yield files
    files.rm("/kept", recursive=True)


def ship(memory: "fsspec.AbstractFileSystem", host: int, *, number: int, content: bytes) -> str:
    """Write an archive of a host, with one file."""
    name = archive_name(f"attempt-000/archives/host-{host}", number)
    writer = ArchiveWriter(number)
    file = f"attempt-000/rank-{host:05d}/rank.json"
    entry = Entry(state=f"{len(content)}-{number}-1", parts=(writer.add(file, content),))
    index = Index(number=number, files={file: entry}, archives={number: Archive(0, writer.size)})
    memory.pipe_file(f"/kept/run/{name}", writer.close(index))
    return name


def read() -> tuple[list[str], dict[str, bytes]]:
    """Names of the archives that a command reads, and the files that it gets."""
    remote = Counting()
    copy = fetch(remote, needs=Needs.LIST).directory
    return remote.read_names, {path.parent.name: path.read_bytes() for path in copy.glob("attempt-*/rank-*/rank.json")}


def test_only_the_indexes_of_new_archives_are_read(memory: "fsspec.AbstractFileSystem", tmp_path: Path) -> None:
    names = [ship(memory, host, number=1, content=b"old") for host in range(HOSTS)]
    wanted = {f"rank-{host:05d}": b"old" for host in range(HOSTS)}
    assert read() == (names * 2, wanted)  # each index, then each file
    assert read() == ([], wanted)
    new = ship(memory, 1, number=2, content=b"new")
    wanted["rank-00001"] = b"new"
    assert read() == ([new] * 2, wanted)
    assert read() == ([], wanted)
    kept = list(tmp_path.rglob(".indexes/*"))
    assert len(kept) == HOSTS
    for path in kept:
        path.write_bytes(path.read_bytes()[:-1])
    assert read() == ([names[0], new, names[2]], wanted)  # damaged ones are read again
