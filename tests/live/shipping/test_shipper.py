"""Rounds of shipping of a recorded run, to a directory."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traincope.events import Kind
from traincope.live.node.retention import compact
from traincope.live.shipping.selecting import LAUNCH_FILE
from traincope.live.shipping.shipper import Shipper
from traincope.live.shipping.targets import Directory
from traincope.record.segments.writer import CAPACITY
from traincope.store import RECORD_DTYPE, read_run
from traincope.store.job.witness import Heard, witness_directory, write_heard
from traincope.store.layout import HEARD_FILE
from traincope.store.places.ship_notes import is_shipped, left_notes, shipping_problems
from traincope.store.segments.segments import HEADER_BYTES, SegmentFile, segment_content
from traincope.topology import Host

RANKS = range(4)
OTHER = Host(name="other", boot_id="2")


class Broken(Directory):
    """A directory that fails after some writes, as one whose server goes away."""

    def __init__(self, root: Path, *, after: int) -> None:
        super().__init__(root)
        self.written: list[str] = []
        self._after = after

    def write(self, name: str, content: bytes) -> None:
        if len(self.written) == self._after:
            raise OSError(5, "Input/output error")
        self.written.append(name)
        super().write(name, content)


def shipper(run: Path, host: Host, there: Path, *, after: int = 10_000) -> tuple[Shipper, Broken]:
    target = Broken(there, after=after)
    return Shipper(run, attempt=0, host=host, target=target), target


def contents(root: Path) -> dict[str, bytes]:
    """Files of a run, without notes and the journal of shipping."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.startswith((".ship", "ship", LAUNCH_FILE))
    }


def test_all_files_arrive_and_nothing_is_shipped_twice(run: Path, host: Host, tmp_path: Path) -> None:
    shipping, target = shipper(run, host, tmp_path / "there")
    done = shipping.round(last=True)
    assert contents(tmp_path / "there") == contents(run)
    assert (done.files, done.left_files) == (len(contents(run)), 0)
    assert is_shipped(run, attempt=0, host=host)
    assert list(shipping_problems(tmp_path / "there" / "attempt-000")) == []
    num_written = len(target.written)
    assert shipping.round(last=True).files == 0
    assert target.written[num_written:] == [name for name in target.written if "/shipped-" in name][1:]


def test_words_and_manifests_arrive_before_records(run: Path, host: Host, tmp_path: Path) -> None:
    shipping, target = shipper(run, host, tmp_path / "there")
    shipping.round()
    for rank in RANKS:
        names = [Path(name).name for name in target.written if f"rank-{rank:05d}/" in name]
        first = names.index("main-00000.seg")
        assert {"names.jsonl", "groups.jsonl", "rank.json"} <= set(names[:first])
    assert target.written[-1].startswith("attempt-000/shipped-")


@pytest.mark.parametrize("after", [1, 5, 9, 14])
def test_another_agent_continues_where_one_was_interrupted(run: Path, host: Host, tmp_path: Path, after: int) -> None:
    there = tmp_path / "there"
    first, broken = shipper(run, host, there, after=after)
    with pytest.raises(OSError, match="Input/output"):
        first.round(last=True)
    first.note_failure("Input/output error")
    (note,) = left_notes(run)
    assert (note.complete, note.problem) == (False, "Input/output error")
    assert note.left_files == len(contents(run)) - len([name for name in broken.written if LAUNCH_FILE not in name])
    second, target = shipper(run, host, there)
    second.round(last=True)
    assert contents(there) == contents(run)
    assert not set(broken.written) & set(target.written)


def test_a_host_that_stopped_shipping_is_a_problem_of_the_run(run: Path, host: Host, tmp_path: Path) -> None:
    shipping, _ = shipper(run, host, tmp_path / "there")
    shipping.round(last=False)
    assert read_run(tmp_path / "there").problems == ()  # the next round may come
    (problem,) = shipping_problems(tmp_path / "there" / "attempt-000", now_wall_ns=1 << 62)
    assert problem.startswith(f"host {host.name} shipped its records last at ")


def test_an_open_segment_is_shipped_as_far_as_it_is_written(run: Path, host: Host, tmp_path: Path) -> None:
    rank = run / "attempt-000" / "rank-00000"
    segment = SegmentFile(rank / "thread-9-00000.seg", capacity=CAPACITY)
    records = np.zeros(3, dtype=RECORD_DTYPE)
    records["kind"], records["start_ns"], records["end_ns"], records["step"] = Kind.SPAN, (1, 2, 3), (2, 3, 4), 5
    shipping, target = shipper(run, host, tmp_path / "there")
    shipped = tmp_path / "there" / "attempt-000" / "rank-00000" / "thread-9-00000.seg"
    for count in (2, 3):
        segment.map[HEADER_BYTES : HEADER_BYTES + count * RECORD_DTYPE.itemsize] = records[:count].tobytes()
        shipping.round()
        assert shipped.read_bytes() == segment_content(records[:count])
    assert target.written.count("attempt-000/rank-00000/thread-9-00000.seg") == 2
    segment.seal(3)
    shipping.round(last=True)
    assert shipped.read_bytes() == (rank / "thread-9-00000.seg").read_bytes()


def test_what_is_gone_here_goes_there_and_files_of_others_stay(run: Path, host: Host, tmp_path: Path) -> None:
    there = tmp_path / "there"
    others = there / "attempt-000" / "rank-00007" / "main-00000.seg"
    others.parent.mkdir(parents=True)
    others.write_bytes(b"of another host")
    (there / "attempt-000" / LAUNCH_FILE).write_text('{"launch": "one"}')
    manifest = run / "attempt-000" / "rank-00000" / "rank.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "launch": "one"}))
    shipping, _ = shipper(run, host, there)
    shipping.round()
    gone = "attempt-000/rank-00002/main-00000.seg"
    compact(run / gone)
    shipping.round(last=True)
    assert not (there / gone).exists()
    assert (there / gone).with_suffix(".parquet").exists()
    assert others.read_bytes() == b"of another host"


def test_a_segment_that_was_given_up_goes_there(run: Path, host: Host, tmp_path: Path) -> None:
    rank = run / "attempt-000" / "rank-00002"
    shutil.copy(rank / "main-00000.seg", rank / "main-00001.seg")
    shipping, _ = shipper(run, host, tmp_path / "there")
    shipping.round()
    (rank / "main-00001.seg").unlink()
    shipping.round()
    assert [path.name for path in (tmp_path / "there/attempt-000/rank-00002").glob("main-*")] == ["main-00000.seg"]


@pytest.mark.parametrize("lost", ["", "main-00000.seg", "names.jsonl", "rank.json"])
def test_what_a_cleaner_of_the_node_removed_stays_there(run: Path, host: Host, tmp_path: Path, lost: str) -> None:
    there = tmp_path / "there"
    shipping, _ = shipper(run, host, there)
    shipping.round()
    before = contents(there)
    path = run / "attempt-000" / "rank-00002" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    for _ in range(2):
        shipping.round(last=True)
    assert contents(there) == before


def test_another_launch_gets_another_attempt(run: Path, host: Host, tmp_path: Path) -> None:
    """A pod that begins again with an empty disk counts from 0; its notes then name the attempt that it got."""
    there = tmp_path / "there"
    requests = {"attempt": 0, "first_step": 32}
    (run / "requests.jsonl").write_text(json.dumps(requests) + "\n")
    (there / "attempt-000" / "rank-00000").mkdir(parents=True)
    shipping, _ = shipper(run, host, there)
    shipping.round(last=True)
    assert (there / "attempt-001" / "rank-00003" / "main-00000.seg").exists()
    assert list((there / "attempt-000" / "rank-00000").iterdir()) == []
    assert json.loads((there / "requests.jsonl").read_text()) == {**requests, "attempt": 1}


def test_ranks_of_the_launch_that_recorded_there_themselves_share_the_attempt(
    run: Path, host: Host, tmp_path: Path
) -> None:
    """A host without room on its node records in the named directory, without the marker of a shipped attempt."""
    there = tmp_path / "there"
    direct = there / "attempt-000" / "rank-00000"
    shutil.copytree(run / "attempt-000" / "rank-00000", direct)
    shutil.rmtree(run / "attempt-000" / "rank-00000")
    for manifest in (direct / "rank.json", *run.glob("attempt-000/rank-*/rank.json")):
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "launch": "one"}))
    shipper(run, host, there)[0].round(last=True)
    assert [rank.rank for rank in read_run(there).ranks] == list(RANKS)
    assert not (there / "attempt-001").exists()


def test_rows_grow_in_place_in_a_directory(run: Path, host: Host, tmp_path: Path) -> None:
    rows = run / "attempt-000" / "rank-00001" / "rows.jsonl"
    rows.write_text("[1]\n")
    shipping, target = shipper(run, host, tmp_path / "there")
    shipping.round()
    shipped = tmp_path / "there" / "attempt-000" / "rank-00001" / "rows.jsonl"
    inode = shipped.stat().st_ino
    with rows.open("a") as file:
        file.write("[2]\n")
    done = shipping.round()
    assert (done.files, done.bytes) == (1, len("[2]\n"))  # of the rows, only what was added
    assert (shipped.read_text(), shipped.stat().st_ino) == ("[1]\n[2]\n", inode)
    assert target.written.count("attempt-000/rank-00001/rows.jsonl") == 1


def test_lines_of_several_hosts_are_united(run: Path, host: Host, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "launcher.jsonl").write_text('{"attempt": 0, "rank": 9}\n{"torn')
    (run / "launcher.jsonl").write_text('{"attempt": 0, "rank": 1}\n')
    shipping, _ = shipper(run, host, there)
    for _ in range(2):
        shipping.round(last=True)
        lines = (there / "launcher.jsonl").read_text().splitlines()
        assert [json.loads(line)["rank"] for line in lines] == [9, 1]


def test_copies_are_shipped_of_hosts_that_may_be_lost(run: Path, host: Host, tmp_path: Path) -> None:
    """And they are removed there once the host answers again."""
    there, attempt = tmp_path / "there", run / "attempt-000"
    shipping, _ = shipper(run, host, there)
    directory = witness_directory(attempt, OTHER, witness=host)
    copy = there / "attempt-000" / directory.relative_to(attempt) / "rank-00007" / "main-00003.seg"
    (directory / "rank-00007").mkdir(parents=True)
    (directory / "rank-00007" / "main-00003.seg").write_bytes(b"copy")
    alive = Heard(host=OTHER, witness=host, heard_wall_ns=1, silent_ns=0)
    silent = replace(alive, silent_ns=5_000_000_000)
    for heard, shipped in (
        *((alive, False), (silent, True), (alive, False), (replace(alive, closed=True), True)),
        (replace(silent, farewell=True), False),
    ):
        write_heard(directory, heard)
        shipping.round()
        assert copy.exists() is shipped
    of_other = witness_directory(attempt, host, witness=OTHER)
    of_other.mkdir()
    write_heard(of_other, replace(silent, host=host, witness=OTHER))
    shipping.round(last=True)
    assert not (there / "attempt-000" / of_other.relative_to(attempt)).exists()


@pytest.mark.parametrize("lost", ["directory", "note", "damaged note", "silent"])
def test_copies_of_a_lost_host_that_vanish_here_stay_there(run: Path, host: Host, tmp_path: Path, lost: str) -> None:
    there, attempt = tmp_path / "there", run / "attempt-000"
    shipping, _ = shipper(run, host, there)
    directory = witness_directory(attempt, OTHER, witness=host)
    copy = directory / "rank-00007" / "main-00003.seg"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"copy")
    silent = Heard(host=OTHER, witness=host, heard_wall_ns=1, silent_ns=5_000_000_000)
    write_heard(directory, silent)
    shipping.round()
    if lost == "directory":
        shutil.rmtree(directory)
    elif lost == "note":
        (directory / HEARD_FILE).unlink()
    elif lost == "damaged note":
        (directory / HEARD_FILE).write_text("{")
    else:
        copy.unlink()
    shipping.round()
    arrived = there / "attempt-000" / copy.relative_to(attempt)
    assert arrived.read_bytes() == b"copy"
    assert (arrived.parents[1] / HEARD_FILE).is_file()
    directory.mkdir(parents=True, exist_ok=True)
    write_heard(directory, replace(silent, silent_ns=0))
    shipping.round()
    assert not arrived.exists()


def test_files_of_another_host_are_not_shipped(run: Path, tmp_path: Path) -> None:
    shipping, _ = shipper(run, OTHER, tmp_path / "there")
    shipping.round(last=True)
    assert not list((tmp_path / "there").glob("attempt-*/rank-*"))
