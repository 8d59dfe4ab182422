"""Run directories that are empty, incomplete, damaged or of another version: an error sentence, or the readable
rest.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import traincope
from traincope.analysis.verdict.rank_failures import rank_failures
from traincope.errors import EmptyRunError, NotARunError, RunDirectoryError, UnreadableError, VersionError
from traincope.events import RECORD_BYTES, Kind
from traincope.live.node.retention import compact
from traincope.store import LauncherNote, read_run
from traincope.store.job.launcher import append_notes, notes_path
from traincope.store.reading import require_readable
from traincope.store.segments.records import read_records
from traincope.timeline import build_timeline
from traincope.topology import ClusterNode, Scheduler


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two ranks: one recorded here, the other a copy of it with another number."""
    path = tmp_path / "runs" / "job"
    with traincope.run(path) as recording:
        for _ in range(3):
            recording.step()
            with traincope.span("work"):
                pass
    for collected in path.rglob("thread-*.seg"):  # another test's garbage was collected on another thread
        collected.unlink()
    first, second = path / "attempt-000" / "rank-00000", path / "attempt-000" / "rank-00001"
    shutil.copytree(first, second)
    edit(second / "rank.json", rank=1)
    edit(path / "run.json", world_size=2)
    return path


def edit(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def rank(run: Path, number: int) -> Path:
    return run / "attempt-000" / f"rank-{number:05d}"


def test_a_complete_run_has_no_problems(run: Path) -> None:
    records = read_run(run)
    assert [r.rank for r in records.ranks] == [0, 1]
    assert (records.missing, records.problems) == ((), ())
    assert [r.problems for r in records.ranks] == [(), ()]


def refuse(path: Path) -> None:
    """Put a directory in the place of a file: not even root can read it as a file."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("extension", [".seg", ".parquet"])
def test_a_segment_that_the_system_refuses_is_a_problem_of_its_rank(run: Path, extension: str) -> None:
    """The records around it and the other rank are read; an export of the whole run is refused."""
    segment = rank(run, 1) / "main-00000.seg"
    shutil.copy(segment, segment.with_name("main-00001.seg"))
    refuse(segment)
    segment = segment.rename(segment.with_suffix(extension))
    records = read_run(run)
    reason = f"cannot read {segment}: Is a directory; check its mode and disk"
    assert [each.problems for each in records.ranks] == [(), (f"{reason}; its records are left out",)]
    assert [each.segments[0].index for each in records.ranks] == [0, 1]
    with pytest.raises(UnreadableError, match=f"^{re.escape(reason)}$"):
        require_readable(records)


@pytest.mark.parametrize("name", ["rank.json", "names.jsonl", "groups.jsonl", "details.jsonl"])
def test_a_rank_of_which_the_system_refuses_another_file_is_left_out_with_a_sentence(run: Path, name: str) -> None:
    """An export of the whole run is refused, and the rank is not called lost."""
    (rank(run, 1) / name).touch()
    refuse(rank(run, 1) / name)
    records = read_run(run)
    assert [each.rank for each in records.ranks] == [0]
    assert records.problems == (
        f"cannot read {rank(run, 1) / name}: Is a directory; check its mode and disk; rank 1 is left out",
    )
    assert (records.missing, records.refused) == ((1,), (1,))
    with pytest.raises(UnreadableError, match=f"^cannot read {rank(run, 1) / name}: Is a directory"):
        require_readable(records)
    assert [finding.kind for finding in rank_failures(build_timeline(records), ())] == []
    shutil.rmtree(rank(run, 1))
    lost = read_run(run)
    assert (lost.missing, lost.refused) == ((1,), ())
    assert [finding.kind for finding in rank_failures(build_timeline(lost), ())] == ["missing_rank"]


def test_a_run_of_which_no_rank_may_be_read_is_not_called_empty(run: Path) -> None:
    for number in range(2):
        refuse(rank(run, number) / "names.jsonl")
    with pytest.raises(UnreadableError, match=f"^cannot read {rank(run, 0)}/names.jsonl: Is a directory"):
        read_run(run)


UNPRIVILEGED = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def read_unprivileged(run: Path) -> str:
    """Print what a process reads of which file modes count, also if root runs this."""
    code = (
        f"from traincope.store import read_run; r = read_run({str(run)!r}); print(r.refused, r.unreadable, *r.problems)"
    )
    return subprocess.run([*UNPRIVILEGED, sys.executable, "-c", code], capture_output=True, text=True).stdout


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_a_rank_whose_directory_may_not_be_listed_is_refused(run: Path) -> None:
    rank(run, 1).chmod(0o311)
    reason = f"cannot read {rank(run, 1)}: Permission denied; check its mode and disk"
    assert read_unprivileged(run) == f"(1,) {(reason,)} {reason}; rank 1 is left out\n"


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_launchers_notes_that_may_not_be_read_are_a_problem(run: Path) -> None:
    """Without them the end of a rank may be unknown."""
    (run / "launcher.jsonl").touch(mode=0)
    reason = f"cannot read {run}/launcher.jsonl: Permission denied; check its mode and disk"
    assert read_unprivileged(run) == f"() {(reason,)} {reason}; the launcher's notes are left out\n"


def test_a_segment_that_is_compacted_while_the_run_is_read_is_read_in_its_new_form(run: Path) -> None:
    segment = rank(run, 1) / "main-00000.seg"
    before = read_records(segment)
    compact(segment)
    after = read_records(segment)
    assert after.records.tobytes() == before.records.tobytes()


def test_the_parent_of_one_run_is_accepted(run: Path) -> None:
    assert read_run(run.parent).path == run


def test_a_parent_of_several_runs_asks_which(run: Path) -> None:
    shutil.copytree(run, run.parent / "other")
    with pytest.raises(NotARunError, match=re.escape("holds 2 runs (job, other); name one of them")):
        read_run(run.parent)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda run: shutil.rmtree(run), NotARunError, "does not exist; give the directory"),
        (lambda run: (run / "run.json").unlink(), NotARunError, "is not a run directory: it has no run.json"),
        (lambda run: shutil.rmtree(run / "attempt-000"), EmptyRunError, "no rank has recorded anything yet"),
        (lambda run: edit(run / "run.json", version=99), VersionError, "was written in format 99"),
        (lambda run: (run / "run.json").write_text("{"), RunDirectoryError, "cannot be read"),
        (lambda run: (run / "run.json").write_text("[]"), RunDirectoryError, "does not hold a JSON object"),
        (lambda run: edit(run / "run.json", world_size=None), RunDirectoryError, "has a missing or damaged value"),
    ],
)
def test_an_unreadable_run_says_why(
    run: Path, damage: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    damage(run)
    with pytest.raises(error, match=re.escape(message)):
        read_run(run)


def test_a_rank_without_records_is_missing(run: Path) -> None:
    shutil.rmtree(rank(run, 1))
    records = read_run(run)
    assert records.missing == (1,)
    assert [r.rank for r in records.ranks] == [0]


def test_a_rank_without_manifest_is_named_and_the_others_open(run: Path) -> None:
    (rank(run, 1) / "rank.json").write_text('{"rank": 1')
    records = read_run(run)
    assert records.missing == (1,)
    assert "rank-00001/rank.json cannot be read" in records.problems[0]


@pytest.mark.parametrize("capacity", ["1e99999", "[1]", "null", '"x"', "1.5", "[" * 3000])
def test_an_invalid_capacity_affects_only_its_segment(run: Path, capacity: str) -> None:
    path = rank(run, 1) / "main-00000.seg"
    raw = path.read_bytes()
    magic, header = raw[:8], f'{{"version": 3, "record_bytes": 56, "capacity": {capacity}}}'.encode()
    path.write_bytes((magic + len(header).to_bytes(4, "little") + header).ljust(4096, b"\0") + raw[4096:])
    damaged = read_run(run).ranks[1]
    assert damaged.segments == ()
    assert "main-00000.seg has a damaged header" in damaged.problems[0]


def test_segments_sort_by_number(run: Path) -> None:
    """100000 sorts before 99999 as text, and attempt 1000 before 999."""
    first = rank(run, 0) / "main-00000.seg"
    for number in (99999, 100000):
        shutil.copy(first, first.with_name(f"main-{number}.seg"))
    segments = read_run(run).ranks[0].segments
    assert [segment.index for segment in segments] == [0, 99999, 100000]
    for number in (999, 1000):
        shutil.copytree(run / "attempt-000", run / f"attempt-{number}")
    whole = read_run(run)
    assert (whole.last_attempt, [attempt.number for attempt in whole.earlier]) == (1000, [0, 999])


@pytest.mark.parametrize("cut", [1, RECORD_BYTES - 1, 3 * RECORD_BYTES + 7])
def test_a_truncated_segment_loses_only_its_tail(run: Path, cut: int) -> None:
    path = rank(run, 1) / "main-00000.seg"
    whole = len(read_run(run).ranks[1].thread("main"))
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    damaged = read_run(run).ranks[1]
    assert len(damaged.thread("main")) == whole - -(-cut // RECORD_BYTES)
    assert "is cut off in the middle of a record" in damaged.problems[0]


def test_a_segment_without_header_affects_only_itself(run: Path) -> None:
    (rank(run, 1) / "main-00000.seg").write_bytes(b"\0" * 5000)
    records = read_run(run)
    assert records.ranks[1].segments == ()
    assert "is not a traincope segment" in records.ranks[1].problems[0]
    assert len(records.ranks[0].thread("main")) > 0
    assert len(records.ranks[1].thread("main")) == 0


def test_an_exception_is_known_before_the_manifest_has_it(tmp_path: Path) -> None:
    """A launcher may kill a rank that failed while it writes its manifest."""
    traincope.run(tmp_path / "clean")(user_event)()
    edit(tmp_path / "clean" / "attempt-000" / "rank-00000" / "rank.json", ending=None, ended_wall_ns=None, process=None)
    assert read_run(tmp_path / "clean").ranks[0].info.ending is None
    with pytest.raises(ValueError, match="of the loss"):
        traincope.run(tmp_path / "run")(fail)()
    edit(tmp_path / "run" / "attempt-000" / "rank-00000" / "rank.json", ending=None, ended_wall_ns=None, process=None)
    assert read_run(tmp_path / "run").ranks[0].info.ending == "ValueError"


def user_event() -> None:
    traincope.event("exception", type="of the user")


def fail() -> None:
    user_event()
    raise ValueError("of the loss")


def test_a_segment_of_another_format_is_refused(run: Path) -> None:
    path = rank(run, 1) / "main-00000.seg"
    path.write_bytes(path.read_bytes().replace(b'"version": 3', b'"version": 9'))
    with pytest.raises(VersionError, match="is of format 9, this traincope reads format 3"):
        read_run(run)


def test_a_names_file_cut_in_a_line_keeps_the_lines_before(run: Path) -> None:
    path = rank(run, 0) / "names.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b'"work"') + 3])
    (first, _) = read_run(run).ranks
    span = first.thread("main")[first.thread("main")["kind"] == Kind.SPAN][0]
    assert first.name(int(span["name"])).startswith("<name ")


def test_a_run_without_records_says_so(run: Path) -> None:
    for number in (0, 1):
        for path in rank(run, number).glob("*.seg"):
            path.unlink()
    with pytest.raises(EmptyRunError, match="holds no records; try again once training has begun"):
        read_run(run)
    (rank(run, 1) / "signal-SIGTERM.txt").write_text("Current thread 0x00007f01 (most recent call first):\n")
    killed = LauncherNote(attempt=0, rank=0, exit_code=-9, first=True, at_wall_ns=7)
    append_notes(notes_path(run), [killed, replace(killed, rank=None, exit_code=1, first=False)])
    ended = "rank 1 got SIGTERM; rank 0 was killed (signal 9); its launcher exited with code 1, before the first record"
    with pytest.raises(EmptyRunError, match=re.escape(f"holds no records: {ended}")):
        read_run(run)


@pytest.mark.parametrize("ranks", ["null", '"x"', "[-1]", "[true]", "17"])
def test_a_damaged_group_keeps_its_number_without_members(run: Path, ranks: str) -> None:
    (rank(run, 0) / "groups.jsonl").write_text(f'[0, {{"key": "0", "axis": "dp", "rule": "mesh", "ranks": {ranks}}}]\n')
    (group,) = read_run(run).ranks[0].groups
    assert (group.number, group.axis, group.ranks) == (0, "dp", ())


@pytest.mark.parametrize(("launch", "read"), [("5e1f", "5e1f"), ("\ud800", None), ("x", None), (7, None), (None, None)])
def test_the_name_of_a_launch_has_hexadecimal_digits(run: Path, launch: object, read: str | None) -> None:
    """Agents derive their key from it."""
    edit(rank(run, 1) / "rank.json", launch=launch)
    assert read_run(run).ranks[1].info.launch == read


@pytest.mark.parametrize("number", [0, 7, 1e300])
def test_a_manifest_of_another_rank_is_refused(run: Path, number: float) -> None:
    edit(rank(run, 1) / "rank.json", rank=number)
    records = read_run(run)
    assert records.missing == (1,)
    assert "rank-00001/rank.json" in records.problems[0]


@pytest.mark.parametrize("name", ["bar.seg", "main-x.seg", "-00000.seg"])
def test_a_stray_file_is_named_and_ignored(run: Path, name: str) -> None:
    (rank(run, 0) / name).write_bytes(b"stray")
    (first, _) = read_run(run).ranks
    assert f"{name} does not have the name of a segment" in first.problems[0]
    assert len(first.thread("main")) > 0


def test_the_name_of_a_node_is_read_back_unless_it_is_more_than_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes a word of a command that a person may copy."""
    monkeypatch.setenv("SLURMD_NODENAME", "n17")
    with traincope.run(tmp_path / "run") as recording:
        recording.step()
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.node == ClusterNode(scheduler=Scheduler.SLURM, name="n17")
    manifest = next((tmp_path / "run").rglob("rank.json"))
    for name in ("n17; reboot", "--all", "$(id)", "", 7, None):
        raw = json.loads(manifest.read_text())
        manifest.write_text(json.dumps(raw | {"node": {"scheduler": "slurm", "name": name}}))
        (rank,) = read_run(tmp_path / "run").ranks
        assert rank.info.node is None
