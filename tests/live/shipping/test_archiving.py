"""Rounds of shipping to a URL: fsspec's file system in memory, with a clock that the test turns."""

import json
import os
import random
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path

import fsspec
import numpy as np
import pytest

from tests.live.shipping.test_shipper import contents
from traincope.errors import NotARunError, RunDirectoryError, ServerError
from traincope.live.node.retention import compact
from traincope.live.shipping.archiving import Archives
from traincope.live.shipping.folding import FULL_BYTES, MAX_PER_HOUR, folded
from traincope.live.shipping.shipper import Shipper
from traincope.store.places.archives import (
    INDEX_FILE,
    Archive,
    ArchiveWriter,
    Entry,
    Index,
    archive_number,
    newest_archives,
    newest_index,
    read_indexes,
)
from traincope.store.places.calls import Call
from traincope.store.places.fetched import Needs, fetch
from traincope.store.places.remote import RemoteFiles
from traincope.topology import Host

URL = "memory://archived/run"
S = 1_000_000_000
HOUR_S = 3_600
BEGIN_S = 490_000 * HOUR_S


class Failing(RemoteFiles):
    """A store that stops to answer before or after it has an archive, or at a removal."""

    def __init__(self, *, at: str = "") -> None:
        super().__init__(URL)
        self._at = at

    def write(self, name: str, content: bytes) -> None:
        is_archive = archive_number(name) is not None
        if is_archive and self._at == "before":
            raise ServerError("no answer")
        super().write(name, content)
        if is_archive and self._at == "after":
            raise ServerError("no answer")

    def remove(self, name: str) -> None:
        if self._at == "removal":
            raise ServerError("no answer")
        super().remove(name)


class Clock:
    """Wall time that passes when the test says so."""

    def __init__(self) -> None:
        self.seconds = BEGIN_S

    def __call__(self) -> int:
        return self.seconds * S


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["fsspec.AbstractFileSystem"]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = fsspec.filesystem("memory")
    yield files
    if files.exists("/archived"):
        files.rm("/archived", recursive=True)


def shipper(run: Path, host: Host, *, clock: Clock, at: str = "") -> Shipper:
    target = Archives(Failing(at=at), wall_ns=clock)
    return Shipper(run, attempt=0, host=host, target=target)


def archives(memory: "fsspec.AbstractFileSystem") -> list[str]:
    return sorted(path for path in memory.find("/archived") if archive_number(path) is not None)


def needed() -> set[int]:
    """Numbers of the archives that the newest index names."""
    remote = RemoteFiles(URL)
    sizes = {name: file.size for name, file in remote.sizes().items()}
    ((folder, _),) = newest_archives(sizes).items()
    return set(newest_index(remote, folder, sizes).archives)


def fetched() -> dict[str, bytes]:
    """The files that a command which reads the URL has."""
    return without_versions(contents(fetch(RemoteFiles(URL), needs=Needs.RECORDS).directory))


def without_versions(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if not name.startswith((".versions", ".indexes"))}


def recorded(run: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(run).items() if not Path(name).name.startswith(".")}


def train(run: Path, *, number: int, rng: random.Random) -> None:
    """What a round of training leaves: rows, a new segment, a compacted older one, sometimes thinned rows."""
    for rank in (run / "attempt-000").glob("rank-*"):
        with (rank / "rows.jsonl").open("ab") as file:
            file.write(json.dumps([number, rng.random()]).encode() + b"\n")
        (rank / f"thread-1-{number:05d}.seg").write_bytes(rng.randbytes(2_000))
        older = rank / f"thread-1-{number - 2:05d}.seg"
        if older.exists():
            older.rename(older.with_suffix(".parquet"))
    if number % 20 == 19:
        rows = run / "attempt-000" / "rank-00001" / "rows.jsonl"
        thinned = rows.with_suffix(".new")
        thinned.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[::2]))
        thinned.rename(rows)


def rounds(shipping: Shipper, run: Path, *, clock: Clock, rng: random.Random, numbers: range, seconds: int) -> None:
    """Train and ship, with so many seconds from one round to the next."""
    for number in numbers:
        train(run, number=number, rng=rng)
        clock.seconds += seconds
        shipping.round()


@pytest.mark.slow
def test_a_node_leaves_few_objects_per_hour_and_every_byte(
    run: Path, host: Host, memory: "fsspec.AbstractFileSystem"
) -> None:
    clock, rng = Clock(), random.Random(5)
    shipping = shipper(run, host, clock=clock)
    for number in range(48):
        train(run, number=number, rng=rng)
        clock.seconds = BEGIN_S + number * HOUR_S // 16
        shipping.round(last=number == 47)
        assert len(needed()) <= MAX_PER_HOUR + number // 16
        assert len(archives(memory)) <= len(needed()) + 2 * MAX_PER_HOUR  # those of two rounds are kept 5 minutes
        if number % 12 == 11:
            assert fetched() == recorded(run)
    assert len(archives(memory)) == len(needed())
    live = sum(map(len, recorded(run).values()))
    assert sum(memory.sizes(archives(memory))) < 2 * live
    others = {Path(path).name for path in memory.find("/archived")} - {Path(path).name for path in archives(memory)}
    assert others == {"run.json", "launch.json"}
    assert not list(memory.find("/archived/run/attempt-000/rank-00000"))


def test_archives_are_zip_files_of_what_was_recorded(
    run: Path, host: Host, memory: "fsspec.AbstractFileSystem"
) -> None:
    shipper(run, host, clock=Clock()).round(last=True)
    (path,) = archives(memory)
    with zipfile.ZipFile(BytesIO(memory.cat_file(path))) as archive:
        assert archive.testzip() is None
        members = {name: archive.read(name) for name in archive.namelist()}
    expected = {name: content for name, content in recorded(run).items() if name != "run.json"}
    assert {name: members.get(name) for name in expected} == expected
    more = {Path(name).name for name in members.keys() - expected.keys()}
    assert {INDEX_FILE} < more
    assert len(more) == 2  # and the note


@pytest.mark.usefixtures("memory")
def test_two_containers_of_one_host_replace_nothing_of_each_other(run: Path, host: Host, tmp_path: Path) -> None:
    """Both have the host's name and boot id, and each its own /dev/shm with its own ranks."""
    for manifest in run.glob("attempt-*/rank-*/rank.json"):
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "launch": "one"}))
    whole, other = recorded(run), tmp_path / "other"
    shutil.copytree(run, other)
    for place, ranks in ((run, (2, 3)), (other, (0, 1))):
        for rank in ranks:
            shutil.rmtree(place / "attempt-000" / f"rank-{rank:05d}")
    clock = Clock()
    for _ in range(3):
        for place in (run, other):
            clock.seconds += HOUR_S
            shipper(place, host, clock=clock).round(last=True)
    assert fetched() == whole


@pytest.mark.parametrize("at", ["before", "after", "removal"])
def test_an_interrupted_upload_loses_and_doubles_nothing(
    run: Path, host: Host, memory: "fsspec.AbstractFileSystem", at: str
) -> None:
    clock, rng = Clock(), random.Random(5)
    first = shipper(run, host, clock=clock)
    rounds(first, run, clock=clock, rng=rng, numbers=range(6), seconds=15)
    before = fetched()
    compact(run / "attempt-000" / "rank-00002" / "main-00000.seg")
    train(run, number=6, rng=rng)
    failing = shipper(run, host, clock=clock, at=at)
    if at == "removal":
        failing.round()
    else:
        with pytest.raises(ServerError):
            failing.round()
    assert fetched() == (before if at == "before" else recorded(run))
    again = shipper(run, host, clock=clock)
    done = again.round(last=True)
    assert fetched() == recorded(run)
    assert (done.files > 0) is (at == "before")  # what has arrived is not shipped again
    again.round(last=True)
    assert len(archives(memory)) <= MAX_PER_HOUR


def test_the_same_agent_continues_after_a_store_that_kept_what_it_did_not_confirm(
    run: Path, host: Host, memory: "fsspec.AbstractFileSystem"
) -> None:
    clock = Clock()
    remote = Failing(at="after")
    target = Archives(remote, wall_ns=clock)
    shipping = Shipper(run, attempt=0, host=host, target=target)
    with pytest.raises(ServerError):
        shipping.round()
    remote._at = ""
    compact(run / "attempt-000" / "rank-00002" / "main-00000.seg")
    shipping.round(last=True)
    assert fetched() == recorded(run)
    assert len(archives(memory)) <= 2


@pytest.mark.usefixtures("memory")
def test_only_what_a_command_needs_is_read(run: Path, host: Host) -> None:
    segment = run / "attempt-000" / "rank-00002" / "thread-7-00000.parquet"
    segment.write_bytes(np.random.default_rng(5).bytes(4 << 20))
    shipper(run, host, clock=Clock()).round(last=True)
    read = [0]

    class Counting(RemoteFiles):
        def end_part(self, call: object) -> bytes:
            content = super().end_part(call)  # type: ignore[arg-type]
            read[0] += len(content)
            return content

    assert fetch(Counting(URL), needs=Needs.LIST).num_files > 4
    assert 0 < read[0] < 1 << 20
    fetch(Counting(URL), needs=Needs.RECORDS)
    assert read[0] > segment.stat().st_size
    total = read[0]
    assert fetch(Counting(URL), needs=Needs.RECORDS).num_files == 0
    assert read[0] - total < 1 << 20


@pytest.mark.usefixtures("memory")
def test_a_run_whose_archives_move_while_it_is_read_is_read_again(run: Path, host: Host) -> None:
    clock, rng, shipped = Clock(), random.Random(5), []
    shipping = shipper(run, host, clock=clock)

    class Shipped(RemoteFiles):
        """Between the listing and the reading, rounds of shipping replace all archives once."""

        def begin_part(self, name: str, *, start: int, end: int) -> "Call[bytes]":
            if not shipped:
                for number in range(9):
                    train(run, number=number, rng=rng)
                    clock.seconds += HOUR_S // 4
                    shipped.append(shipping.round())
            return super().begin_part(name, start=start, end=end)

    shipping.round()
    copy = fetch(Shipped(URL), needs=Needs.RECORDS).directory
    assert len(shipped) == 9
    assert without_versions(contents(copy)) == recorded(run)


@pytest.mark.usefixtures("memory")
def test_a_file_that_a_cleaner_removed_moves_on_with_its_archive(run: Path, host: Host) -> None:
    clock, rng = Clock(), random.Random(5)
    shipping = shipper(run, host, clock=clock)
    shipping.round()
    words = "attempt-000/rank-00002/names.jsonl"
    before = (run / words).read_bytes()
    (run / words).unlink()
    rounds(shipping, run, clock=clock, rng=rng, numbers=range(10), seconds=HOUR_S // 3)
    assert fetched() == {**recorded(run), words: before}


def test_what_a_rule_of_the_store_removed_is_named_and_shipped_again(
    run: Path, host: Host, memory: "fsspec.AbstractFileSystem", caplog: pytest.LogCaptureFixture
) -> None:
    clock, rng = Clock(), random.Random(5)
    shipping = shipper(run, host, clock=clock)
    rounds(shipping, run, clock=clock, rng=rng, numbers=range(3), seconds=2 * HOUR_S)
    (oldest, *_) = archives(memory)
    memory.rm_file(oldest)
    left = fetched()
    lost = recorded(run).keys() - left.keys()
    assert {Path(name).name for name in lost} >= {"main-00000.seg", "names.jsonl", "rank.json"}
    assert f"{len(lost)} files are left out: {URL}/attempt-000/archives/" in caplog.text
    clock.seconds += HOUR_S
    shipper(run, host, clock=clock).round(last=True)
    assert fetched() == recorded(run)


def test_a_damaged_archive_is_reported_by_its_name(run: Path, host: Host, memory: "fsspec.AbstractFileSystem") -> None:
    shipper(run, host, clock=Clock()).round(last=True)
    (path,) = archives(memory)
    content = bytearray(memory.cat_file(path))
    content[2_000] ^= 255
    memory.pipe_file(path, bytes(content))
    with pytest.raises(RunDirectoryError, match=f"{os.path.basename(path)} is damaged"):
        fetched()


@pytest.mark.parametrize("is_here", [True, False])
def test_bytes_that_changed_in_an_older_archive_ship_again_and_hold_up_nothing(
    run: Path, host: Host, memory: "fsspec.AbstractFileSystem", is_here: bool
) -> None:
    clock, rng = Clock(), random.Random(5)
    words = "attempt-000/rank-00002/names.jsonl"
    shipping = shipper(run, host, clock=clock)
    shipping.round()
    (first,) = archives(memory)
    with zipfile.ZipFile(BytesIO(memory.cat_file(first))) as archive:
        at = archive.getinfo(words).header_offset + 30 + len(words) + 20
    content = bytearray(memory.cat_file(first))
    content[at] ^= 255
    memory.pipe_file(first, bytes(content))
    before = (run / words).read_bytes()
    if not is_here:
        (run / words).unlink()
    train(run, number=0, rng=rng)
    clock.seconds += 15
    shipping.round()
    shipping = shipper(run, host, clock=clock)  # its memory has no archives
    train(run, number=1, rng=rng)
    clock.seconds += HOUR_S
    with pytest.raises(RunDirectoryError, match=f"{os.path.basename(first)} is damaged"):
        shipping.round()
    rounds(shipping, run, clock=clock, rng=rng, numbers=range(2, 6), seconds=HOUR_S)
    if is_here:
        assert fetched() == recorded(run)
        assert first not in archives(memory)
    else:
        with pytest.raises(RunDirectoryError, match=f"{os.path.basename(first)} is damaged"):
            fetched()
        assert first in archives(memory)
        assert len(needed()) <= 6  # one per hour
        (run / words).write_bytes(before)
        shipping.round()
        assert fetched() == recorded(run)


@pytest.mark.usefixtures("memory")
def test_little_is_read_of_large_archives_of_which_little_is_needed(run: Path, host: Host) -> None:
    clock, read, large = Clock(), [0], run / "attempt-000" / "rank-00002" / "large.gz"

    class Counting(RemoteFiles):
        def read_part(self, name: str, *, start: int, end: int) -> bytes:
            content = super().read_part(name, start=start, end=end)
            read[0] += len(content)
            return content

    shipping = Shipper(run, attempt=0, host=host, target=Archives(Counting(URL), wall_ns=clock))
    for number in range(4):
        large.unlink(missing_ok=True)
        if number < 3:
            large.write_bytes(np.random.default_rng(number).bytes(6 << 20))
        (run / "attempt-000" / "rank-00001" / f"a-{number}.json").write_bytes(b"1")
        (run / "attempt-000" / "rank-00003" / f"z-{number}.json").write_bytes(b"1")
        clock.seconds += HOUR_S
        shipping.round()
    assert fetched() == recorded(run)
    assert len(needed()) == 1
    assert 0 < read[0] < 1 << 20


@pytest.mark.usefixtures("memory")
def test_an_agent_that_ends_moves_nothing_first(run: Path, host: Host) -> None:
    """A container's runtime kills it some seconds after the signal: the new records come first."""
    clock, rng = Clock(), random.Random(5)
    shipping = shipper(run, host, clock=clock)
    rounds(shipping, run, clock=clock, rng=rng, numbers=range(3), seconds=15)
    before = needed()
    assert len(before) > 1
    train(run, number=3, rng=rng)
    clock.seconds += HOUR_S
    shipping.round(is_ending=True)
    assert len(needed() - before) == 1
    assert len(needed() & before) > 1
    assert fetched() == recorded(run)
    train(run, number=4, rng=rng)
    shipper(run, host, clock=clock).round(last=True)
    assert fetched() == recorded(run)


@pytest.mark.usefixtures("memory")
def test_a_full_disk_of_the_node_holds_up_nothing(run: Path, host: Host) -> None:
    shipping = shipper(run, host, clock=Clock())
    shipping.note_begin()
    shipping.round()
    notes = [*(run / "attempt-000").glob(".shipped-*"), *(run / "attempt-000").glob("shipping-*")]
    assert len(notes) == 2
    for note in notes:  # a directory in its place cannot be replaced by a file either
        note.unlink()
        note.mkdir()
    train(run, number=0, rng=random.Random(5))
    assert shipping.round(last=True).files == 8
    assert fetched() == recorded(run)


def test_an_older_archive_serves_if_the_newest_is_damaged_and_the_host_ships_again(
    run: Path, host: Host, memory: "fsspec.AbstractFileSystem", caplog: pytest.LogCaptureFixture
) -> None:
    clock, rng = Clock(), random.Random(5)
    shipping = shipper(run, host, clock=clock)
    for number in range(3):
        before = recorded(run)
        train(run, number=number, rng=rng)
        clock.seconds += 15
        shipping.round()
    newest = archives(memory)[-1]
    memory.pipe_file(newest, memory.cat_file(newest)[:-3])
    assert fetched() == before
    assert f"{os.path.basename(newest)} is damaged: it has no index at its end" in caplog.text
    clock.seconds += 15
    shipper(run, host, clock=clock).round(last=True)
    assert fetched() == recorded(run)
    assert newest not in archives(memory)


@pytest.mark.slow
@pytest.mark.usefixtures("memory")
def test_two_processes_that_ship_the_same_files_lose_none(run: Path, host: Host) -> None:
    """As `traincope ship` on a login node while an agent tries again: their locks are on two machines."""
    clock, rng = Clock(), random.Random(5)
    both = [shipper(run, host, clock=clock)]
    both[0].round()
    both.append(shipper(run, host, clock=clock))
    for number in range(30):
        train(run, number=number, rng=rng)
        clock.seconds += HOUR_S // 8
        if number > 0:
            with pytest.raises(ServerError, match="was written by another process"):
                both[1 - number % 2].round()
        both[1 - number % 2].round()
        assert fetched() == recorded(run), number


@pytest.mark.usefixtures("memory")
def test_two_processes_that_write_at_the_same_moment_lose_nothing(run: Path, host: Host) -> None:
    """The other one writes after this one has looked for others."""
    clock, rng, others = Clock(), random.Random(5), []
    shipper(run, host, clock=clock).round()

    class Meeting(RemoteFiles):
        def write(self, name: str, content: bytes) -> None:
            if archive_number(name) is not None and not others:
                others.append(shipper(run, host, clock=clock))
                train(run, number=1, rng=rng)
                others[0].round()
            super().write(name, content)

    shipping = Shipper(run, attempt=0, host=host, target=Archives(Meeting(URL), wall_ns=clock))
    train(run, number=0, rng=rng)
    clock.seconds += 30
    with pytest.raises(ServerError, match="by another process"):
        shipping.round()
    assert len(others) == 1
    assert fetched() == recorded(run)
    shipping.round()
    assert fetched() == recorded(run)


@pytest.mark.usefixtures("memory")
def test_a_file_whose_name_no_copy_can_have_stays_on_the_node(run: Path, host: Host) -> None:
    whole = recorded(run)
    for name in (b"notes-\xff", b"a\\b", b"a" * 201):
        (run / "attempt-000" / "rank-00001" / os.fsdecode(name)).write_text("of another program")
    shipper(run, host, clock=Clock()).round(last=True)
    assert fetched() == whole


def test_an_archive_of_which_little_is_needed_is_written_again_in_the_present_hour() -> None:
    past = {1: Archive(0, 1000), 2: Archive(0, 3 * FULL_BYTES), 3: Archive(1, 1000)}
    live = {1: 499, 2: FULL_BYTES + 1, 3: 400}
    assert folded(past, live, new_bytes=10, hour=2) == ([1], 2)  # one at a time
    del past[1], live[1]
    assert folded(past, live, new_bytes=10, hour=2) == ([2], 2)
    assert folded(past, live, new_bytes=10, hour=1) == ([2], 1)


def test_no_damage_of_an_archive_ends_in_another_error(
    run: Path, host: Host, memory: "fsspec.AbstractFileSystem", caplog: pytest.LogCaptureFixture
) -> None:
    shipper(run, host, clock=Clock()).round(last=True)
    (path,) = archives(memory)
    content, rng, refused = memory.cat_file(path), random.Random(5), 0
    for _ in range(60):
        damaged = bytearray(content)
        first = rng.choice((0, len(content) - 3_000))
        for _ in range(20):
            damaged[rng.randrange(first, len(content))] = rng.randrange(256)
        memory.pipe_file(path, bytes(damaged[: rng.choice((len(content), rng.randrange(len(content))))]))
        caplog.clear()
        try:
            copied = fetched()
        except RunDirectoryError:
            refused += 1
        else:
            assert "is damaged" in caplog.text or copied == recorded(run)
            refused += "is damaged" in caplog.text
    assert refused > 40


@pytest.mark.parametrize(
    "names", [[""], ["/etc/a"], ["../a"], ["a/../b"], ["a\\b"], ["a" * 201], ["\ud800"], ["a", "a/b"]]
)
def test_names_that_a_copy_cannot_have_are_refused(memory: "fsspec.AbstractFileSystem", names: list[str]) -> None:
    hostile(memory, names)
    with pytest.raises(NotARunError, match="which is not one of a run"):
        fetched()


def test_a_state_of_any_form_is_taken(memory: "fsspec.AbstractFileSystem") -> None:
    for state in ("1-" + "9" * 40 + "-1", "", "a" * 10_000):
        hostile(memory, ["attempt-000/a"], state=state)
        assert fetched() == {"run.json": b"{}", "attempt-000/a": b"content"}


def hostile(memory: "fsspec.AbstractFileSystem", names: list[str], *, state: str = "7") -> None:
    """Write a run with an archive in which files have these names."""
    writer = ArchiveWriter(1)
    entry = Entry(state=state, parts=(writer.add("a", b"content"),))
    folder = "/archived/run/attempt-000/archives/host-1"
    memory.makedirs(folder, exist_ok=True)
    memory.pipe_file("/archived/run/run.json", b"{}")
    index = Index(number=1, files=dict.fromkeys(names, entry))
    memory.pipe_file(f"{folder}/000000000000000001.zip", writer.close(index))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"files": {"a": ["", [[1, 0, 10, 0, 10, True, "crc"]]]}},
        {"files": {"a": ["", [[1, -5, 10, 0, 10, True, 0]]]}},
        {"files": {"a": ["", [[1, 0, 10]]]}},
        {"files": ["a"]},
        {"number": -1},
        {"number": "1"},
        {"archives": {"x": [1, 1]}},
    ],
)
def test_an_index_of_another_form_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    remote = RemoteFiles(f"file://{tmp_path}")
    content = {"version": 1, "number": 1, "files": {}, "archives": {}, **change}
    monkeypatch.setattr("traincope.store.places.archives.content_of", lambda _: json.dumps(content).encode())
    (tmp_path / "one.zip").write_bytes(written := ArchiveWriter(1).close(Index(number=1)))
    with pytest.raises(RunDirectoryError, match=r"one\.zip is damaged: its index"):
        read_indexes(remote, {"one.zip": len(written)})


@pytest.mark.parametrize(("live_bytes", "most"), [(20_000, 7.0), (1_000_000, 4.3)])
def test_a_byte_is_written_again_a_few_times_only(live_bytes: int, most: float) -> None:
    """Three hours of rounds every 15 s. Each leaves `live_bytes`. Never more than 4 partial archives of an hour."""
    kept: dict[int, Archive] = {}
    live: dict[int, int] = {}
    written = 0
    for number in range(720):
        taken, hour = folded(kept, live, new_bytes=live_bytes, hour=number // 240)
        size = live_bytes + sum(live[each] for each in taken)
        written += size
        for each in taken:
            del kept[each], live[each]
        kept[number], live[number] = Archive(hour, size), size
        partial = [each for each in live if live[each] < FULL_BYTES]
        for past in range(3):
            of_hour = sum(kept[each].hour == past for each in partial)
            assert of_hour <= (MAX_PER_HOUR if past == number // 240 else 1) or number % 240 == 0
        assert sum(live.values()) == (number + 1) * live_bytes
    assert written <= most * sum(live.values())
    assert len(kept) <= 3 + MAX_PER_HOUR + sum(live.values()) // FULL_BYTES
